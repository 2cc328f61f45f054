"""The table of tiny models that the runtime is held against.

One row a reason: the first row of a model is its plain form, every other row
changes a few columns of it and says why in its name.
"""

from collections.abc import Mapping

from tests.oracle import (
    attention_family,
    linear_family,
    mamba_family,
    mla_family,
    window_family,
)
from tests.oracle.rows import Tiny
from tests.oracle.stack_rows import STACK
from tests.oracle.state_rows import BAMBA, JAMBA, MAMBA, MAMBA2
from tests.oracle.transformer_rows import DEEPSEEK_V2, DEEPSEEK_V3, LLAMA, QWEN3

_BY_MODEL = (
    *(LLAMA, QWEN3, DEEPSEEK_V2, DEEPSEEK_V3, MAMBA, MAMBA2, JAMBA, BAMBA, STACK),
    *attention_family.MODELS,
    *window_family.MODELS,
    *mla_family.MODELS,
    *mamba_family.MODELS,
    *linear_family.MODELS,
)

TINY: tuple[Tiny, ...] = tuple(row for rows in _BY_MODEL for row in rows)
"""Every row, by model."""

BY_NAME: Mapping[str, Tiny] = {row.name: row for row in TINY}

BFLOAT16: tuple[Tiny, ...] = tuple(
    row
    for rows in _BY_MODEL
    if rows is not STACK  # the dense twin runs in float32 only
    for row in rows
    if row in rows[:3] or row.reason.startswith("odd sizes")
)
"""The rows that are run in bfloat16 too."""
