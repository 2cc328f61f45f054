"""Tiny models in the real format, and what `transformers` says of them.

`TINY` is the table of models, `tiny_checkpoint(name)` makes one on disk, and
`oracle_logprobs` and `oracle_greedy` answer for it by full forwards without a
cache (its cached paths have bugs). For our own `hybrid_stack` the dense twin that
it is trained with answers.
"""

import tests.oracle.auto_classes  # noqa: F401
from tests.oracle.checkpoints import tiny_checkpoint
from tests.oracle.forward import oracle_greedy, oracle_logprobs
from tests.oracle.rows import Tiny
from tests.oracle.table import BFLOAT16, BY_NAME, TINY

__all__ = [
    "BFLOAT16",
    "BY_NAME",
    "TINY",
    "Tiny",
    "oracle_greedy",
    "oracle_logprobs",
    "tiny_checkpoint",
]
