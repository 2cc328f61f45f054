"""Rows of attention models, of which Llama and Qwen3 are in `transformer_rows.py`."""

from tests.oracle.attention_layer_norm_rows import COHERE, COHERE2, NEMOTRON, STABLELM, STARCODER2
from tests.oracle.attention_moe_rows import (
    GLM4_MOE,
    HUNYUAN_V1_MOE,
    MINIMAX_M2,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
)
from tests.oracle.attention_more_moe_rows import (
    DOTS1,
    ERNIE4_5_MOE,
    EXAONE_MOE,
    FLEX_OLMO,
    GRANITEMOE,
    GRANITEMOESHARED,
    SOLAR_OPEN,
)
from tests.oracle.attention_rows import MISTRAL, OLMO2, QWEN2, SMOLLM3
from tests.oracle.attention_variant_rows import (
    APERTUS,
    ARCEE,
    ERNIE4_5,
    GLM,
    GLM4,
    GRANITE,
    HELIUM,
    HUNYUAN_V1_DENSE,
    PHI3,
    SEED_OSS,
)
from tests.oracle.attention_window_rows import EXAONE4, MINISTRAL, MINISTRAL3, OLMO3
from tests.oracle.gpt_neox_rows import GPT_NEOX
from tests.oracle.minimax_m3_rows import MINIMAX_M3_VL, MINIMAX_M3_VL_TEXT
from tests.oracle.phimoe_rows import PHIMOE
from tests.oracle.rows import Tiny

MODELS: tuple[list[Tiny], ...] = (
    *(MISTRAL, QWEN2, QWEN3_MOE, MIXTRAL, OLMO2, SMOLLM3, MINIMAX_M2),
    *(MINIMAX_M3_VL_TEXT, MINIMAX_M3_VL),
    *(GLM4_MOE, DOTS1, OLMOE, QWEN2_MOE, HUNYUAN_V1_MOE, GRANITEMOE, GRANITEMOESHARED),
    *(SEED_OSS, ERNIE4_5, HELIUM, HUNYUAN_V1_DENSE, GRANITE, PHI3, GLM, GLM4, ARCEE),
    *(APERTUS, PHIMOE, GPT_NEOX),
    *(OLMO3, EXAONE4, COHERE, COHERE2, NEMOTRON, STARCODER2, STABLELM),
    *(MINISTRAL, MINISTRAL3, ERNIE4_5_MOE, EXAONE_MOE, FLEX_OLMO, SOLAR_OPEN),
)
