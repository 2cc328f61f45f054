"""A row of the table of tiny models, and the words to write rows in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Layout = Literal[
    "plain",
    "legacy",
    "stacked",
    "sharded",
    "extra layer",
    "multimodal",
    "convolutions by part",
    "A.X-K1",
    "DeepSeek-V4",
]


@dataclass(frozen=True)
class Tiny:
    """One tiny random checkpoint.

    Attributes:
        model_type: as in `config.json`.
        reason: what this row is there for.
        config: what to make the configuration from.
        layout: how it lies on disk: `legacy` writes `config.json` as older releases
            did, `stacked` has all experts of a layer in one tensor, `sharded` has an
            index and several files, `extra layer` has tensors of a layer beyond the
            last (as DeepSeek-V3's multi-token prediction), `multimodal` has the model as the
            `text_config` and `language_model` of a larger one, beside a tensor for images,
            `convolutions by part` has those of queries, keys and values apart, where
            transformers saves three equal parts of all their channels, `A.X-K1` has no bias of
            the choice of experts, and the norm behind them in dense layers too, `DeepSeek-V4`
            has the release's names and keys, and a layer that predicts a further token.
        prompt_lengths: of the prompts of one batch. 41 is more than one prefill chunk.
        stepwise: a longer sequence gives other logits at the positions before, so every
            output token needs a forward of its own to be judged by.
        earliest_seen: a token early in 41 that still shows at the last: where every layer has
            a window, the first doesn't.
    """

    model_type: str
    reason: str
    config: Mapping[str, Any]
    layout: Layout = "plain"
    prompt_lengths: tuple[int, ...] = (1, 3, 8, 17, 41)
    stepwise: bool = False
    earliest_seen: int = 0

    @property
    def name(self) -> str:
        """`<model_type>-<reason>`, without spaces."""
        return f"{self.model_type}-" + re.sub(r"\W+", "-", self.reason)

    @property
    def has_experts(self) -> bool:
        """Whether some layer chooses among experts."""
        names = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
        return max(self.config.get(key, 1) for key in names) > 1


def row(
    reason: str,
    *,
    layout: Layout = "plain",
    prompt_lengths: tuple[int, ...] = Tiny.prompt_lengths,
    stepwise: bool = False,
    earliest_seen: int = 0,
    **changes: Any,
) -> Tiny:
    """What changes against the model's first row, and why. For `rows`."""
    return Tiny("", reason, changes, layout, prompt_lengths, stepwise, earliest_seen)


def rows(model_type: str, base: Mapping[str, Any], *changed: Tiny) -> list[Tiny]:
    """The rows of one model: `base` with the columns of each of `changed`."""
    return [replace(r, model_type=model_type, config={**base, **r.config}) for r in changed]


def rope(rope_type: str, **numbers: Any) -> dict[str, Any]:
    """`rope_parameters` of a config."""
    return {"rope_theta": 10000.0, "rope_type": rope_type, **numbers}


SIZES: dict[str, Any] = {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3}
ATTENTION: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 72,
    "max_position_embeddings": 256,
}
