"""Rows of further models: see `table.py`."""

from tests.oracle.rows import Tiny

MODELS: tuple[list[Tiny], ...] = ()
