"""Mamba-1 and Mamba-2 mixers of the dense twin."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.scans import chunked_ssd, linear_scan

# The log of a decay that leaves nothing.
FORGET = 30.0


def causal_conv(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """Depthwise: row t of `x[batch, tokens, channels]` sees rows t - K + 1 to t."""
    taps = conv.weight[:, 0]
    kernel, tokens = taps.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    out = torch.zeros_like(x)
    for i in range(kernel):
        out = out + padded[:, i : i + tokens] * taps[:, i]
    return out if conv.bias is None else out + conv.bias


class Mamba1(nn.Module):
    """The selective scan of Mamba: a decay for every channel and state."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        inner, self.state = layer["intermediate_size"], layer["state_size"]
        self.dt_rank, kernel = layer["time_step_rank"], layer.get("conv_kernel", 4)
        bias, conv_bias = layer.get("use_bias", False), layer.get("use_conv_bias", True)
        self.in_proj = nn.Linear(hidden, 2 * inner, bias=bias)
        self.conv1d = nn.Conv1d(inner, inner, kernel, groups=inner, bias=conv_bias)
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * self.state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, inner, bias=True)
        self.A_log = nn.Parameter(torch.arange(1.0, self.state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, u: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens, hidden]` to the same; see `DenseStack.forward` for `memory`."""
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x = F.silu(causal_conv(x, self.conv1d))
        dt, b, c = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        decay = (dt[..., None] * -self.A_log.exp()).exp()
        if memory is not None:
            decay = decay * memory[:, None, None, None]
        h = linear_scan(decay, (dt * x)[..., None] * b[:, :, None])
        y = (h @ c[..., None])[..., 0] + self.D * x
        return self.out_proj(y * F.silu(z))


class GatedRMSNorm(nn.Module):
    """RMSNorm of each group of channels, and a SiLU gate before or after it."""

    def __init__(self, size: int, groups: int, eps: float, norm_before_gate: bool) -> None:
        super().__init__()
        self.groups, self.eps, self.norm_before_gate = groups, eps, norm_before_gate
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """`norm(x) * silu(z)` or `norm(x * silu(z))`."""
        gate = F.silu(z)
        x = (x if self.norm_before_gate else x * gate).unflatten(-1, (self.groups, -1))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        x = x.flatten(-2) * self.weight
        return x * gate if self.norm_before_gate else x


class Mamba2(nn.Module):
    """State-space duality: one decay a head; heads of a group share B and C."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        self.heads, head_dim = layer["num_heads"], layer["head_dim"]
        self.groups, self.state = layer.get("n_groups", 1), layer["state_size"]
        self.inner, self.chunk = self.heads * head_dim, layer.get("chunk_size", 64)
        low, high = layer.get("time_step_limit", (0.0, math.inf))
        self.dt_limit = float(low), float(high)
        bias, conv_bias = layer.get("use_bias", False), layer.get("use_conv_bias", True)
        conv_dim = self.inner + 2 * self.groups * self.state
        kernel = layer.get("conv_kernel", 4)
        self.in_proj = nn.Linear(hidden, self.inner + conv_dim + self.heads, bias=bias)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, kernel, groups=conv_dim, bias=conv_bias)
        self.dt_bias = nn.Parameter(torch.ones(self.heads))
        self.A_log = nn.Parameter(torch.arange(1.0, self.heads + 1).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        before_gate = layer.get("norm_before_gate", False)
        self.norm = GatedRMSNorm(self.inner, self.groups, eps, before_gate)
        self.out_proj = nn.Linear(self.inner, hidden, bias=bias)

    def _per_head(self, x: Tensor) -> Tensor:
        """`[batch, tokens, groups * state]` to `[batch, tokens, heads, state]`."""
        x = x.unflatten(-1, (self.groups, self.state))
        return x.repeat_interleave(self.heads // self.groups, dim=2)

    def forward(self, u: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens, hidden]` to the same; see `DenseStack.forward` for `memory`."""
        bc = self.groups * self.state
        z, xbc, dt = self.in_proj(u).split([self.inner, self.inner + 2 * bc, self.heads], dim=-1)
        x, b, c = F.silu(causal_conv(xbc, self.conv1d)).split([self.inner, bc, bc], dim=-1)
        x, b, c = x.unflatten(-1, (self.heads, -1)), self._per_head(b), self._per_head(c)
        dt = F.softplus(dt + self.dt_bias).clamp(*self.dt_limit)
        log_decay = dt * -self.A_log.exp()
        if memory is not None:
            log_decay = log_decay - FORGET * (1 - memory)[:, None, None]
        y = chunked_ssd(dt[..., None] * x, log_decay, b, c, self.chunk)
        y = (y + self.D[:, None] * x).flatten(2)
        return self.out_proj(self.norm(y, z))
