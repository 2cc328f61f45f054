"""Logprobs of chosen tokens, of the likeliest ones, and their ranks."""

from collections.abc import Callable, Sequence

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.request import Logprob, TokenLogprobs

TokenText = Callable[[int], str | None]
"""The text of a token id, if there is a tokenizer."""


def token_logprobs(
    logits: Float[Tensor, "rows vocab"],
    chosen: Int64[Tensor, " rows"],
    num_top: Sequence[int],
    text: TokenText,
) -> list[TokenLogprobs]:
    """For every row the chosen token and its `num_top` likeliest, from plain log-softmax."""
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, chosen[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    top = logprobs.topk(max(num_top), dim=-1)
    columns = (chosen, own[:, 0], ranks, top.indices, top.values)
    rows = zip(num_top, *(column.tolist() for column in columns), strict=True)
    entries: list[TokenLogprobs] = []
    for count, token, logprob, rank, top_ids, top_logprobs in rows:
        entry = {token: Logprob(logprob, rank, text(token))}
        for n in range(count):
            entry.setdefault(top_ids[n], Logprob(top_logprobs[n], n + 1, text(top_ids[n])))
        entries.append(entry)
    return entries
