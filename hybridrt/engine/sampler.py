"""The sampler: from logits to tokens, for all rows of a batch at once.

A draw takes one uniform number that follows from the sequence's seed and the
position of the token alone, so it doesn't depend on what else is in the batch, on
preemption or on the device.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from hybridrt.kernels.sample import likeliest
from hybridrt.kernels.sample import sample as draw
from hybridrt.request import SamplingParams
from hybridrt.transfer import to_device

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler needs of one sequence.

    `banned` are token ids that must not come yet (stop tokens before `min_tokens`);
    `seed` and `position` number the draw.
    """

    params: SamplingParams
    prompt_token_ids: Rows[int]
    output_token_ids: Rows[int]
    banned: Rows[int]
    seed: int
    position: int


def sample(logits: Float[Tensor, "rows vocab"], rows: Rows[SamplingRow]) -> Int64[Tensor, " rows"]:
    """One token per row: the likeliest at temperature 0, else a draw."""
    logits = _adjust(logits, rows)
    if all(row.params.greedy for row in rows):
        return likeliest(logits)
    logits = _keep_top(logits, rows)
    temperature, min_p = (
        torch.tensor([getattr(row.params, name) for row in rows], dtype=torch.float64)
        for name in ("temperature", "min_p")
    )
    numbers = uniform([row.seed for row in rows], [row.position for row in rows])
    return draw(logits, temperature, min_p, torch.from_numpy(numbers))


def uniform(seeds: Rows[int], positions: Rows[int]) -> Float64[np.ndarray, " rows"]:
    """A number in [0, 1) for each pair of seed and position (SplitMix64, Steele 2014)."""
    with np.errstate(over="ignore"):
        seed = _mix(np.array(seeds, np.uint64))
        z = _mix(seed + np.array(positions, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derive_seed(seed: int, index: int) -> int:
    """A seed for the `index`-th of several things that share one seed."""
    return _mix_one(_mix_one(seed) + index + 1) >> 1


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mix_one(z: int) -> int:
    """The same of one number, in a tenth of the time."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _adjust(
    logits: Float[Tensor, "rows vocab"], rows: Rows[SamplingRow]
) -> Float[Tensor, "rows vocab"]:
    """Bias, bans and penalties; a copy if there are any."""
    biases = [(i, t, b) for i, r in enumerate(rows) for t, b in (r.params.logit_bias or {}).items()]
    vocab = logits.shape[1]
    bans = [(i, t, -np.inf) for i, row in enumerate(rows) for t in row.banned if t < vocab]
    penalised = [i for i, row in enumerate(rows) if row.params.penalises]
    if not (biases or bans or penalised):
        return logits
    logits = logits.clone()
    if penalised:
        index = to_device(torch.tensor(penalised), logits.device)
        logits[index] = _penalise(logits[index], [rows[i] for i in penalised])
    for entries in (biases, bans):
        if entries:
            row, token, value = (
                to_device(torch.tensor(column), logits.device)
                for column in zip(*entries, strict=True)
            )
            logits.index_put_((row, token), value.to(logits.dtype), accumulate=True)
    return logits


def _penalise(
    logits: Float[Tensor, "rows vocab"], rows: Rows[SamplingRow]
) -> Float[Tensor, "rows vocab"]:
    output = _counts(logits, [row.output_token_ids for row in rows])
    prompt = _counts(logits, [row.prompt_token_ids for row in rows])
    repetition, frequency, presence = (
        _column(logits, [getattr(row.params, f"{name}_penalty") for row in rows])
        for name in ("repetition", "frequency", "presence")
    )
    seen = (output + prompt) > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, scaled, logits)
    return logits - frequency * output - presence * (output > 0)


def _counts(like: Float[Tensor, "rows vocab"], tokens: Rows[Rows[int]]) -> Tensor:
    """How often each row has each token."""
    rows = torch.tensor([i for i, row in enumerate(tokens) for _ in row], dtype=torch.int64)
    flat = torch.tensor([token for row in tokens for token in row], dtype=torch.int64)
    place = (to_device(rows, like.device), to_device(flat, like.device))
    one = torch.ones((), device=like.device, dtype=like.dtype)
    return torch.zeros_like(like).index_put_(place, one, accumulate=True)


def _column(like: Tensor, values: Rows[float]) -> Float[Tensor, "rows 1"]:
    return to_device(torch.tensor(values, dtype=like.dtype), like.device)[:, None]


def _keep_top(
    logits: Float[Tensor, "rows vocab"], rows: Rows[SamplingRow]
) -> Float[Tensor, "rows vocab"]:
    """Without all but the `top_k` likeliest, and of those the fewest that reach `top_p` together.

    A copy if any row asks for it. Tokens below `min_p` don't count.
    """
    vocab = logits.shape[1]
    asked = [i for i, row in enumerate(rows) if _keeps_top(row.params, vocab)]
    if not asked:
        return logits
    index = to_device(torch.tensor(asked), logits.device)
    params = [rows[i].params for i in asked]
    given = logits[index].double()
    given = (given - given.amax(-1, keepdim=True)) / _column(given, [p.temperature for p in params])
    least = _column(given, [p.min_p for p in params]).log()
    given = given.masked_fill(given < least, -torch.inf)

    ordered, order = given.sort(dim=-1, descending=True, stable=True)
    top_k = _column(given, [p.top_k if p.top_k > 0 else vocab for p in params])
    rank = torch.arange(vocab, device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    top_p = _column(given, [p.top_p for p in params])
    dropped = (rank >= top_k) | ((before >= top_p) & (rank > 0))
    dropped = torch.empty_like(dropped).scatter_(-1, order, dropped)
    return logits.index_copy(0, index, logits[index].masked_fill(dropped, -torch.inf))


def _keeps_top(params: SamplingParams, vocab: int) -> bool:
    return not params.greedy and (params.top_p < 1 or 0 < params.top_k < vocab)
