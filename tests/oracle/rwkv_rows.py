"""Rows of RWKV-4: means weighted by keys that fade, and inputs mixed with the last one."""

from typing import Any

from tests.oracle.rows import row, rows

_PLAIN: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "attention_hidden_size": 48,
    "intermediate_size": 72,
    "rescale_every": 2,
}

RWKV = rows(
    "rwkv",
    _PLAIN,
    row("halved every two layers"),
    row("sizes left out", attention_hidden_size=None, intermediate_size=None),
    row("wide recurrence", attention_hidden_size=70),
    row("large eps halved every layer", layer_norm_epsilon=0.5, rescale_every=1),
    row("large eps halved after three layers", layer_norm_epsilon=0.5, rescale_every=3),
    row("never halved", rescale_every=0, layer_norm_epsilon=0.5),
    row("tied embeddings", tie_word_embeddings=True),
    row(
        "odd sizes",
        hidden_size=45,
        attention_hidden_size=27,
        intermediate_size=61,
        num_hidden_layers=3,
    ),
)
