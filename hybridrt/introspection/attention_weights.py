"""Where a query looks: the weights of its softmax, from what an attention kernel is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.reference.gather import Reach, blocks_for, gather_row
from hybridrt.kernels.reference.mla_attention import Latents, absorb
from hybridrt.kernels.reference.paged_attention import PagedKV

LAST = 16  # tokens before a query's own
_MOST_SCORES = 2**22  # held at once: 16 MiB
_OF_HEADS = ("paged_attention", "relative_attention", "sparse_attention")
_OF_LATENTS = ("mla_attention", "sparse_mla_attention")


class Row(NamedTuple):
    """One sequence's part of a step: its row, its tokens of the batch, and tokens before them."""

    index: int
    tokens: slice
    context: int

    @property
    def end(self) -> int:
        """Tokens of the sequence behind the step."""
        return self.context + self.tokens.stop - self.tokens.start


@dataclass(frozen=True, slots=True)
class Seen:
    """What is cached of a sequence's tokens from `first` on, as a kernel reads it."""

    first: int
    keys: Float[Tensor, "kv_heads tokens head_dim_k"]
    values: Float[Tensor, "kv_heads tokens head_dim_v"] | None

    def norms(self, start: int) -> Float32[Tensor, "new_tokens kv_heads"]:
        """Of each token from `start` on: the norm of a head's key and value as one vector."""
        parts = [part for part in (self.keys, self.values) if part is not None]
        new = (part[:, start - self.first :].float().square().sum(-1) for part in parts)
        return torch.stack([*new]).sum(0).sqrt().T


def can_read(kernel: str) -> bool:
    """Whether the kernel attends to what is cached of tokens, and nothing else."""
    return kernel in _OF_HEADS or kernel in _OF_LATENTS


def read_seen(kernel: str, given: Mapping[str, Any], row: Row, queries: Sequence[int]) -> Seen:
    """What is cached of a row's new tokens, and what the queries at these positions see."""
    reach = _reach(given)
    cache = given["k"] if kernel in _OF_HEADS else given["c_kv"][:, None]
    size = cache.shape[2]
    begin = reach.first_visible(row.context) // size * size
    first = min([row.context, *(reach.first_visible(query) for query in queries[:1])])
    blocks = given["pages"].page_table[row.index, : blocks_for(row.end - begin, size)]
    gather = partial(_gather, blocks=blocks, places=slice(first - begin, row.end - begin))
    if kernel in _OF_HEADS:
        held = PagedKV(given["k"], given["v"], given["k_scale"], given["v_scale"])
        keys, values = held.read(gather, given["q"].dtype)
        return Seen(first, keys[0], values[0])
    latents = Latents(given["c_kv"], given["k_pe"], given["c_kv_scale"])
    both = torch.cat(latents.read(gather, given["q_nope"].dtype), dim=-1)
    return Seen(first, both[0], None)


def attention_statistics(
    kernel: str, given: Mapping[str, Any], row: Row, seen: Seen, positions: list[int]
) -> dict[str, Float32[Tensor, "queries heads"]]:
    """Of the queries at these positions in the sequence, in order, which stand in the row.

    `attention_entropy`, in nats, is that of all weights, a sink's with them; the others are the
    weight of the sequence's first token, of the `LAST` before the query's own, and of its own.
    """
    heads = (given["q"] if kernel in _OF_HEADS else given["q_nope"]).shape[1]
    lot = max(1, _MOST_SCORES // (heads * seen.keys.shape[1]))
    parts = [
        _of_lot(kernel, given, row, seen, positions[start : start + lot])
        for start in range(0, len(positions), lot)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _of_lot(
    kernel: str, given: Mapping[str, Any], row: Row, seen: Seen, positions: list[int]
) -> dict[str, Float32[Tensor, "queries heads"]]:
    device = seen.keys.device
    position = torch.tensor(positions, device=device)
    query = position - row.context + row.tokens.start
    token = torch.arange(seen.first, seen.first + seen.keys.shape[1], device=device)
    distance = position[:, None] - token
    scores = _scores(kernel, given, query, seen.keys, distance)
    scores = scores.masked_fill(~_visible(given, query, token, distance), -torch.inf)
    nothing = _sinks(given, query, scores.shape[1])
    weights = torch.cat([scores, nothing[..., None]], dim=-1).softmax(-1)
    of_tokens = weights[..., :-1]

    def mass(chosen: Bool[Tensor, "queries tokens"]) -> Float32[Tensor, "queries heads"]:
        return (of_tokens * chosen[:, None]).sum(-1)

    return {
        "attention_entropy": torch.special.entr(weights).sum(-1),
        "attention_first": mass((token == 0).expand_as(distance)),
        "attention_last": mass((distance > 0) & (distance <= LAST)),
        "attention_own": mass(distance == 0),
    }


def _scores(
    kernel: str,
    given: Mapping[str, Any],
    query: Int64[Tensor, " queries"],
    keys: Float[Tensor, "kv_heads tokens dim"],
    distance: Int64[Tensor, "queries tokens"],
) -> Float32[Tensor, "queries heads tokens"]:
    if kernel in _OF_LATENTS:
        parts = (given["q_nope"][query], given["q_pe"][query], given["w_uk"])
        q = absorb(*(part.float() for part in parts))
    else:
        q = given["q"][query].float()
    grouped = q.unflatten(1, (keys.shape[0], -1)).permute(1, 2, 0, 3)  # kv_heads group queries dim
    scores = torch.matmul(grouped.flatten(1, 2), keys.float().mT) * given["scale"]
    scores = scores.unflatten(1, grouped.shape[1:3]).flatten(0, 1).transpose(0, 1)
    cap = given.get("softcap")
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if kernel == "relative_attention":
        scores = scores + _relative(given, query, distance)
    return scores


def _relative(
    given: Mapping[str, Any], query: Int64[Tensor, " queries"], distance: Int64[Tensor, "queries t"]
) -> Float32[Tensor, "queries heads t"]:
    """What is added for each distance; see `hybridrt.kernels.relative_attention`."""
    by_distance = given["relative"][query].float() @ given["profiles"].float()
    last = by_distance.shape[-1] - 1
    near = distance.clamp(0, last)[:, None].expand(-1, by_distance.shape[1], -1)
    return by_distance.gather(-1, near).masked_fill((distance > last)[:, None], 0)


def _visible(
    given: Mapping[str, Any],
    query: Int64[Tensor, " queries"],
    token: Int64[Tensor, " tokens"],
    distance: Int64[Tensor, "queries tokens"],
) -> Bool[Tensor, "queries heads_or_one tokens"]:
    """Which tokens a query sees: none behind it, those in its reach, or those selected for it."""
    reach, seen = _reach(given), distance >= 0
    if reach.window is not None:
        first = reach.first_visible_of(distance[:, 0] + token[0])
        seen = seen & (token >= first[:, None])
    selected = given.get("selected")
    if selected is None:
        return seen[:, None]
    chosen = selected[query]
    if chosen.dim() == 2:
        chosen = chosen[:, None]
    inside = torch.zeros(*chosen.shape[:2], len(token) + 1, dtype=torch.bool, device=token.device)
    inside.scatter_(2, (chosen.long() - token[0] + 1).clamp(min=0), True)
    heads = given["q"].shape[1] if "q" in given else chosen.shape[1]
    return (inside[..., 1:] & seen[:, None]).repeat_interleave(heads // chosen.shape[1], dim=1)


def _sinks(
    given: Mapping[str, Any], query: Int64[Tensor, " queries"], heads: int
) -> Float32[Tensor, "queries heads"]:
    sinks = given.get("sinks")
    if sinks is None:
        return torch.full((len(query), heads), -torch.inf, device=query.device)
    return (sinks[query] if sinks.dim() == 2 else sinks.expand(len(query), -1)).float()


def _reach(given: Mapping[str, Any]) -> Reach:
    return Reach(given.get("window"), given.get("chunked", False))


def _gather(cache: Tensor, blocks: Tensor, places: slice) -> Tensor:
    return gather_row(cache, blocks, places)[None]
