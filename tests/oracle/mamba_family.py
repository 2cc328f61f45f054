"""Rows of further models with Mamba layers: see `table.py`."""

from tests.oracle.falcon_rows import FALCON_H1, FALCON_MAMBA
from tests.oracle.granite_rows import GRANITEMOEHYBRID
from tests.oracle.nemotron_rows import NEMOTRON_H
from tests.oracle.rows import Tiny
from tests.oracle.zamba_rows import ZAMBA, ZAMBA2

MODELS: tuple[list[Tiny], ...] = (
    FALCON_MAMBA,
    FALCON_H1,
    GRANITEMOEHYBRID,
    NEMOTRON_H,
    ZAMBA2,
    ZAMBA,
)
