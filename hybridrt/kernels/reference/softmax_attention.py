"""Attention over keys and values that lie side by side, in plain torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from hybridrt.kernels.reference.gather import EVERYTHING, Reach

CausalAttention = Callable[..., Tensor]
"""`causal_attention`, or what gives the same and takes less time."""

QUERY_BLOCK = 512  # queries behind a context at once: bounds the mask's memory
_LEAST_QUERY_BLOCK = 64  # below it, a narrow window saves less than the calls cost
_MOST_SCORES = 2**24  # held at once where no fused kernel computes them: 64 MiB


@dataclass(frozen=True, slots=True)
class Softmax:
    """How scores become weights.

    A score is `scale * q . k`, and with `softcap` c it is `c * tanh(score / c)` (Gemma 2,
    arXiv 2408.00118, section 2). `sinks` is one logit a query head that joins the
    denominator and has no value (gpt-oss, arXiv 2508.10925, section 2.2).
    """

    scale: float
    sinks: Float[Tensor, " heads"] | None = None
    softcap: float | None = None

    @property
    def is_fused(self) -> bool:
        """Whether torch has one kernel for it."""
        return self.sinks is None and self.softcap is None


def attend_once(
    q: Float[Tensor, "rows heads head_dim_k"],
    k: Float[Tensor, "rows kv_heads tokens head_dim_k"],
    v: Float[Tensor, "rows kv_heads tokens head_dim_v"],
    mask: Bool[Tensor, "rows tokens"] | None,
    softmax: Softmax,
) -> Float[Tensor, "rows heads head_dim_v"]:
    """One query a row. The query heads of a group are the queries of their key head."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    if softmax.is_fused:
        out = _fused(
            grouped, k, v, attn_mask=None if mask is None else mask[:, None, None], softmax=softmax
        )
        return out.flatten(1, 2)
    seen = None if mask is None else mask[:, None, None, None]
    return _weighted(grouped[:, :, :, None], k, v, seen, softmax).flatten(1, 3)


def causal_attention(
    q: Float[Tensor, "heads queries head_dim_k"],
    k: Float[Tensor, "kv_heads tokens head_dim_k"],
    v: Float[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach = EVERYTHING,
    first: int = 0,
) -> Float[Tensor, "heads queries head_dim_v"]:
    """Attends from the last `queries` of `tokens`, each as far back as `reach` says.

    Keys and values begin with the token at position `first`; the first query sees none
    before it. A few queries are computed at a time, each lot over the keys in its reach.
    """
    queries, tokens = q.shape[1], k.shape[1]
    context = first + tokens - queries
    if context == 0 and reach.window is None and softmax.is_fused:
        return masked_attention(q, k, v, None, softmax)
    parts: list[Tensor] = []
    for start, stop in _lots(context, context + queries, q.shape[0] * tokens, reach, softmax):
        keys = slice(reach.first_visible(start) - first, stop - first)
        part = q[:, start - context : stop - context]
        mask = _mask(start, stop, reach, softmax, q)
        parts.append(masked_attention(part, k[:, keys], v[:, keys], mask, softmax))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _lots(
    position: int, end: int, scores_a_query: int, reach: Reach, softmax: Softmax
) -> Iterator[tuple[int, int]]:
    """Cuts the queries at positions `position:end`; a chunk's end is always a cut."""
    while position < end:
        most = QUERY_BLOCK
        if not softmax.is_fused:
            most = max(1, min(most, _MOST_SCORES // scores_a_query))
        elif reach.first_visible(position) == position:
            most = reach.window or end  # a triangle of scores, which needs no mask
        elif reach.window is not None:
            most = min(most, max(_LEAST_QUERY_BLOCK, reach.window))
        stop = min(end, position + most)
        if reach.chunked and reach.window is not None:
            stop = min(stop, reach.first_visible(position) + reach.window)
        yield position, stop
        position = stop


def _mask(
    start: int, stop: int, reach: Reach, softmax: Softmax, q: Float[Tensor, "..."]
) -> Shaped[Tensor, "queries tokens"] | None:
    """Which of the tokens in reach each query sees; None: a triangle.

    Where torch's kernel takes it and no window cuts the first ones off, it is what torch makes
    of such a mask to add to the scores, at a tenth of the cost.
    """
    first = reach.first_visible(start)
    if first == start and reach.first_visible(stop - 1) == first:
        return None
    if softmax.is_fused and (reach.window is None or reach.chunked):
        triangle = q.new_full((stop - start, stop - start), -torch.inf).triu_(1)
        return pad(triangle, (start - first, 0))
    query = torch.arange(start, stop, device=q.device)[:, None]
    token = torch.arange(first, stop, device=q.device)
    mask = token <= query
    if reach.window is not None and not reach.chunked:
        mask &= token > query - reach.window
    return mask


def masked_attention(
    q: Float[Tensor, "heads queries head_dim_k"],
    k: Float[Tensor, "kv_heads tokens head_dim_k"],
    v: Float[Tensor, "kv_heads tokens head_dim_v"],
    mask: Shaped[Tensor, "queries tokens"] | None,
    softmax: Softmax,
) -> Float[Tensor, "heads queries head_dim_v"]:
    """Attends from each query to the tokens of its row in `mask`; None: up to its own."""
    if not softmax.is_fused:
        if mask is None:
            mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
        grouped = q.unflatten(0, (k.shape[0], -1))[None]
        return _weighted(grouped, k[None], v[None], mask, softmax)[0].flatten(0, 1)
    out = _fused(
        q[None],
        k[None],
        v[None],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q.shape[0] != k.shape[0],
        softmax=softmax,
    )
    return out[0]


def _fused(
    q: Float[Tensor, "rows heads queries head_dim_k"],
    k: Float[Tensor, "rows kv_heads tokens head_dim_k"],
    v: Float[Tensor, "rows kv_heads tokens head_dim_v"],
    softmax: Softmax,
    attn_mask: Shaped[Tensor, "..."] | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Float[Tensor, "rows heads queries head_dim_v"]:
    """torch's own kernel, which wants keys and values of one size: the smaller are padded."""
    more = v.shape[-1] - k.shape[-1]
    if more > 0:
        q, k = pad(q, (0, more)), pad(k, (0, more))
    out = scaled_dot_product_attention(
        q,
        k,
        pad(v, (0, -more)) if more < 0 else v,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=softmax.scale,
        enable_gqa=enable_gqa,
    )
    return out[..., : v.shape[-1]] if more < 0 else out


def _weighted(
    q: Float[Tensor, "rows kv_heads group queries head_dim_k"],
    k: Float[Tensor, "rows kv_heads tokens head_dim_k"],
    v: Float[Tensor, "rows kv_heads tokens head_dim_v"],
    mask: Bool[Tensor, "..."] | None,
    softmax: Softmax,
) -> Float[Tensor, "rows kv_heads group queries head_dim_v"]:
    """The softmax step by step, in float32. `mask` is of `[rows, 1, 1, queries, tokens]`."""
    shape = q.shape[2:4]
    scores = q.flatten(2, 3).float() @ k.float().transpose(-1, -2) * softmax.scale
    if softmax.softcap is not None:
        scores = scores.div_(softmax.softcap).tanh_().mul_(softmax.softcap)
    scores = scores.unflatten(2, shape)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    sinks = None if softmax.sinks is None else softmax.sinks.float().view(k.shape[1], -1, 1, 1)
    if sinks is not None:
        largest = torch.maximum(largest, sinks)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - largest).exp()
    out = (weights.flatten(2, 3) @ v.float()).unflatten(2, shape) / total
    return out.to(q.dtype)
