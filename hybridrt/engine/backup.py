"""Backup: a held sequence as it was before somebody wrote to its cache."""

from dataclasses import dataclass

from jaxtyping import Float32
from torch import Tensor


@dataclass(slots=True, eq=False)
class Backup:
    """What is put back when a write is undone; the cache has its pages under `name`.

    Nobody can undo a write any more whose backup is `abandoned`: its pages are given back before
    the sequence computes or is written to again.
    """

    name: str
    token_ids: list[int]
    num_computed: int
    logits: Float32[Tensor, " vocab"] | None
    was_written_to: bool
    abandoned: bool = False
