"""Logprobs of chosen tokens, of the likeliest ones, and their ranks."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.request import Logprob, TokenLogprobs

TokenText = Callable[[int], str | None]
"""The text of a token id, if there is a tokenizer."""


class LogprobColumns(NamedTuple):
    """Of every row the chosen token, its logprob and its rank; the likeliest and their logprobs."""

    chosen: Int64[Tensor, " rows"]
    own: Float[Tensor, " rows"]
    ranks: Int64[Tensor, " rows"]
    top_ids: Int64[Tensor, "rows num_top"]
    top: Float[Tensor, "rows num_top"]


def logprob_columns(
    logits: Float[Tensor, "rows vocab"], chosen: Int64[Tensor, " rows"], num_top: int
) -> LogprobColumns:
    """The chosen tokens and the `num_top` likeliest, from plain log-softmax, on the device."""
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, chosen[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    top = logprobs.topk(num_top, dim=-1)
    return LogprobColumns(chosen, own[:, 0], ranks, top.indices, top.values)


def token_logprobs(
    columns: Iterable[Tensor], num_top: Sequence[int], text: TokenText
) -> list[TokenLogprobs]:
    """For every row the chosen token and its `num_top` likeliest, of columns on the host."""
    rows = zip(num_top, *(column.tolist() for column in columns), strict=True)
    entries: list[TokenLogprobs] = []
    for count, token, logprob, rank, top_ids, top_logprobs in rows:
        entry = {token: Logprob(logprob, rank, text(token))}
        for n in range(count):
            entry.setdefault(top_ids[n], Logprob(top_logprobs[n], n + 1, text(top_ids[n])))
        entries.append(entry)
    return entries
