"""Rows of models with latent attention: see `table.py`."""

from tests.oracle.axk2_rows import AXK2
from tests.oracle.deepseek_v4_rows import DEEPSEEK_V4
from tests.oracle.dots3_note_rows import DOTS3_NOTE
from tests.oracle.glm5_next_rows import GLM5_NEXT
from tests.oracle.hy_v4_rows import HY_V4
from tests.oracle.latent_rows import (
    AXK1,
    GLM4_MOE_LITE,
    LONGCAT_FLASH,
    MINICPM3,
    MISTRAL4,
    YOUTU,
)
from tests.oracle.rows import Tiny
from tests.oracle.sparse_rows import DEEPSEEK_V32, GLM_MOE_DSA, MISTRAL_LARGE4

MODELS: tuple[list[Tiny], ...] = (
    *(MINICPM3, GLM4_MOE_LITE, YOUTU, MISTRAL4, LONGCAT_FLASH, AXK1, AXK2),
    DEEPSEEK_V4,
    *(HY_V4, MISTRAL_LARGE4, DEEPSEEK_V32, GLM_MOE_DSA, GLM5_NEXT, DOTS3_NOTE),
)
