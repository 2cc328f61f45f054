"""The two recurrences of the Mamba family, differentiable and quick enough to train on a CPU."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, update: Tensor) -> Tensor:
        h = update.clone()
        for t in range(1, h.shape[0]):
            h[t].addcmul_(decay[t], h[t - 1])
        ctx.save_for_backward(decay, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        decay, h = ctx.saved_tensors
        grad = grads[0].clone()
        for t in range(h.shape[0] - 2, -1, -1):
            grad[t].addcmul_(decay[t + 1], grad[t + 1])
        grad_decay = torch.zeros_like(decay)
        torch.mul(grad[1:], h[:-1], out=grad_decay[1:])
        return grad_decay, grad


def linear_scan(decay: Tensor, update: Tensor) -> Tensor:
    """`h[t] = decay[t] * h[t-1] + update[t]` along dimension 1, from `h[-1] = 0`.

    One fused operation a step, over all batches and channels at once: on a CPU
    this touches each element once, which a log-depth scan does not.
    """
    time_first = _LinearScan.apply(
        decay.transpose(0, 1).contiguous(), update.transpose(0, 1).contiguous()
    )
    return time_first.transpose(0, 1)


def chunked_ssd(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Mamba-2: `h[t] = exp(log_decay[t]) h[t-1] + x[t] b[t]^T`, `y[t] = h[t] c[t]`.

    Args:
        x: `[batch, tokens, heads, head_dim]`, already times dt.
        log_decay: `[batch, tokens, heads]`.
        b: `[batch, tokens, heads, state]`.
        c: as `b`.
        chunk: tokens computed as one matrix product; the result does not depend on it.

    Returns:
        `y[batch, tokens, heads, head_dim]`.
    """
    tokens = x.shape[1]
    # Padding at the end: a causal result does not see it.
    x, b, c = (_chunks(F.pad(t, (0, 0, 0, 0, 0, -tokens % chunk)), chunk) for t in (x, b, c))
    # [batch, chunks, heads, chunk]: the log of the decay from the chunk's start through t.
    log_decay = F.pad(log_decay, (0, 0, 0, -tokens % chunk)).unflatten(1, (-1, chunk))
    since_start = log_decay.transpose(2, 3).cumsum(-1)

    # Within a chunk: from s to t, for s <= t, as masked attention.
    between = since_start[..., :, None] - since_start[..., None, :]
    later = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    weights = (c @ b.transpose(-1, -2)) * between.masked_fill(later, -math.inf).exp()
    y = weights @ x

    # Between chunks: what each adds to the state at its end, then a short recurrence.
    to_end = (since_start[..., -1:] - since_start).exp()
    added = (x * to_end[..., None]).transpose(-1, -2) @ b
    whole = since_start[..., -1].exp()[..., None, None]
    h, at_start = torch.zeros_like(added[:, 0]), []
    for i in range(added.shape[1]):
        at_start.append(h)
        h = whole[:, i] * h + added[:, i]
    y = y + (c @ torch.stack(at_start, 1).transpose(-1, -2)) * since_start.exp()[..., None]
    return y.transpose(2, 3).flatten(1, 2)[:, :tokens]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """`[batch, tokens, heads, dim]` to `[batch, chunks, heads, chunk, dim]`."""
    return x.unflatten(1, (-1, chunk)).transpose(2, 3)
