"""Rows of models with latent attention: see `table.py`."""

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
    *(MINICPM3, GLM4_MOE_LITE, YOUTU, MISTRAL4, LONGCAT_FLASH, AXK1),
    *(MISTRAL_LARGE4, DEEPSEEK_V32, GLM_MOE_DSA),
)
