"""Short convolution, delta rule and lightning attention of the dense twin, token by token."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.mamba import causal_conv


class ShortConv(nn.Module):
    """A convolution between two gates."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        bias, kernel = layer.get("use_bias", False), layer.get("conv_kernel", 3)
        self.in_proj = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.conv = nn.Conv1d(hidden, hidden, kernel, groups=hidden, bias=bias)
        self.out_proj = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, u: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        b, c, x = self.in_proj(u).chunk(3, dim=-1)
        return self.out_proj(c * causal_conv(b * x, self.conv))


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Each token corrects what the state answers to its key, then asks with its query.

    Args:
        q: `[batch, tokens, heads, keys]`, of length 1 before scaling.
        k: as `q`.
        v: `[batch, tokens, heads, values]`.
        decay: as `q`, or `[batch, tokens, heads, 1]`.
        beta: `[batch, tokens, heads]`, how much of the error is corrected.

    Returns:
        `[batch, tokens, heads, values]`.
    """
    state = v.new_zeros(*k[:, 0].shape, v.shape[-1])
    ys = []
    for t in range(v.shape[1]):
        state = state * decay[:, t, ..., None]
        answer = (k[:, t, ..., None] * state).sum(-2)
        error = beta[:, t, :, None] * (v[:, t] - answer)
        state = state + k[:, t, ..., None] * error[..., None, :]
        ys.append((q[:, t, ..., None] * state).sum(-2))
    return torch.stack(ys, dim=1) * k.shape[-1] ** -0.5


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, but for very short ones."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


class HeadNorm(nn.Module):
    """RMSNorm of each head, with one weight for all of them."""

    def __init__(self, head_dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., heads, head_dim]` to `[..., heads * head_dim]`."""
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return (x * self.weight).flatten(-2)


class GatedDeltaNet(nn.Module):
    """The delta rule with one decay a head; value heads share keys and queries."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        self.key_heads, self.heads = layer["num_key_heads"], layer["num_value_heads"]
        self.k_dim, self.v_dim = layer["key_head_dim"], layer["value_head_dim"]
        keys, values = self.key_heads * self.k_dim, self.heads * self.v_dim
        channels, kernel = 2 * keys + values, layer.get("conv_kernel", 4)
        self.in_proj_qkvz = nn.Linear(hidden, channels + values, bias=False)
        self.in_proj_ba = nn.Linear(hidden, 2 * self.heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, kernel, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(self.heads))
        self.A_log = nn.Parameter(torch.arange(1.0, self.heads + 1).log())
        self.norm = HeadNorm(self.v_dim, eps)
        self.out_proj = nn.Linear(values, hidden, bias=False)

    def _parts(self, x: Tensor, *sizes: int) -> list[Tensor]:
        """Rows that stand by key head, as one row of all heads for each part."""
        parts = x.unflatten(-1, (self.key_heads, -1)).split(sizes, dim=-1)
        return [part.flatten(-2) for part in parts]

    def forward(self, u: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        shared = self.heads // self.key_heads
        values = shared * self.v_dim
        qkvz = self._parts(self.in_proj_qkvz(u), self.k_dim, self.k_dim, values, values)
        b, a = self._parts(self.in_proj_ba(u), shared, shared)
        qkv = F.silu(causal_conv(torch.cat(qkvz[:3], dim=-1), self.conv1d))
        q, k, v = qkv.split([part.shape[-1] for part in qkvz[:3]], dim=-1)
        q, k = (unit(x.unflatten(-1, (self.key_heads, -1))) for x in (q, k))
        q, k = (x.repeat_interleave(shared, dim=2) for x in (q, k))
        decay = torch.exp(-self.A_log.exp() * F.softplus(a + self.dt_bias))
        v = v.unflatten(-1, (self.heads, -1))
        y = delta_rule(q, k, v, decay[..., None], torch.sigmoid(b))
        return self.out_proj(self.norm(y) * F.silu(qkvz[3]))


class KimiDeltaAttention(nn.Module):
    """The delta rule with a decay for every channel of a head's keys."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        self.heads, rank = layer["num_heads"], layer["head_dim"]
        inner, kernel = self.heads * rank, layer.get("conv_kernel", 4)
        for part in "qkv":
            setattr(self, f"{part}_proj", nn.Linear(hidden, inner, bias=False))
            conv = nn.Conv1d(inner, inner, kernel, groups=inner, bias=False)
            setattr(self, f"{part}_conv1d", conv)
        self.f_a_proj = nn.Linear(hidden, rank, bias=False)
        self.f_b_proj = nn.Linear(rank, inner, bias=False)
        self.g_a_proj = nn.Linear(hidden, rank, bias=False)
        self.g_b_proj = nn.Linear(rank, inner, bias=False)
        self.b_proj = nn.Linear(hidden, self.heads, bias=False)
        self.A_log = nn.Parameter(torch.arange(1.0, self.heads + 1).log()[None, None, :, None])
        self.dt_bias = nn.Parameter(torch.zeros(inner))
        self.o_norm = HeadNorm(rank, eps)
        self.o_proj = nn.Linear(inner, hidden, bias=False)

    def _convolved(self, part: str, u: Tensor) -> Tensor:
        x = causal_conv(getattr(self, f"{part}_proj")(u), getattr(self, f"{part}_conv1d"))
        return F.silu(x).unflatten(-1, (self.heads, -1))

    def forward(self, u: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        q, k, v = (self._convolved(part, u) for part in "qkv")
        step = F.softplus(self.f_b_proj(self.f_a_proj(u)) + self.dt_bias)
        decay = torch.exp(-self.A_log.exp() * step.unflatten(-1, (self.heads, -1)))
        y = delta_rule(unit(q), unit(k), v, decay, torch.sigmoid(self.b_proj(u)))
        return self.o_proj(self.o_norm(y) * torch.sigmoid(self.g_b_proj(self.g_a_proj(u))))


class LightningAttention(nn.Module):
    """Linear attention in which each head forgets at a rate of its own."""

    def __init__(self, hidden: int, eps: float, layer: dict[str, Any]) -> None:
        super().__init__()
        self.heads, head_dim = layer["num_attention_heads"], layer["head_dim"]
        self.eps, self.scale = eps, layer.get("decay_scale", 1.0)
        inner = self.heads * head_dim
        self.qkv_proj = nn.Linear(hidden, 3 * inner, bias=False)
        self.output_gate = nn.Linear(hidden, inner, bias=False)
        self.norm = HeadNorm(inner, eps)
        self.out_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        by_head = F.silu(self.qkv_proj(u)).unflatten(-1, (self.heads, -1))
        q, k, v = by_head.chunk(3, dim=-1)
        slopes = torch.tensor([2 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)])
        decay = torch.exp(-self.scale * slopes)[:, None, None]
        state = k.new_zeros(*k[:, 0].shape, v.shape[-1])
        ys = []
        for t in range(u.shape[1]):
            state = decay * state + k[:, t, ..., None] * v[:, t, :, None]
            ys.append((q[:, t, ..., None] * state).sum(-2))
        y = torch.stack(ys, dim=1).flatten(-2)
        return self.out_proj(self.norm(y[..., None, :]) * torch.sigmoid(self.output_gate(u)))
