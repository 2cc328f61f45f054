"""Rows of models with linear attention or convolutions: see `table.py`."""

from tests.oracle.kda_rows import BAILING_HYBRID, KIMI_LINEAR
from tests.oracle.minimax_rows import MINIMAX
from tests.oracle.olmo_hybrid_rows import OLMO_HYBRID
from tests.oracle.qwen4_rows import QWEN4_EXP
from tests.oracle.qwen_linear_rows import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from tests.oracle.rows import Tiny
from tests.oracle.rwkv_rows import RWKV
from tests.oracle.short_conv_rows import LFM2, LFM2_MOE, LFM2_VL, LFM3, LFM3_VL
from tests.oracle.xlstm_rows import XLSTM
from tests.oracle.zaya_rows import ZAYA

MODELS: tuple[list[Tiny], ...] = (
    *(QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, QWEN4_EXP),
    *(LFM2, LFM2_VL, LFM2_MOE, LFM3, LFM3_VL),
    *(KIMI_LINEAR, BAILING_HYBRID, OLMO_HYBRID, MINIMAX, ZAYA, XLSTM, RWKV),
)
