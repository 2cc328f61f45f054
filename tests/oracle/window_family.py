"""Rows of models with windows, sinks, soft caps or shared keys and values: see `table.py`."""

from tests.oracle.gemma_rows import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GEMMA4_UNIFIED,
    GEMMA4_UNIFIED_TEXT,
    VAULTGEMMA,
)
from tests.oracle.inkling2_rows import INKLING2
from tests.oracle.inkling_rows import INKLING
from tests.oracle.llama4_rows import LLAMA4
from tests.oracle.recurrent_gemma_rows import RECURRENT_GEMMA
from tests.oracle.rows import Tiny
from tests.oracle.sink_rows import GPT_OSS, MIMO_V2_FLASH

MODELS: tuple[list[Tiny], ...] = (
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    MIMO_V2_FLASH,
    GEMMA4,
    GEMMA4_UNIFIED_TEXT,
    GEMMA4_UNIFIED,
    RECURRENT_GEMMA,
    GEMMA,
    VAULTGEMMA,
    LLAMA4,
    INKLING,
    INKLING2,
)
