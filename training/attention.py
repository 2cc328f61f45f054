"""Attention and MLA written plainly: every token's keys side by side, no cache."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = dict[str, Any]
DEFAULT_ROPE: Config = {"rope_type": "default", "rope_theta": 10000.0}


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises every row."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotary_angles(tokens: int, rotary_dim: int, rope: Config) -> Tensor:
    """`[tokens, rotary_dim / 2]`: position times frequency."""
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"rope_type={kind!r}: the dense twin knows 'default' only")
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return torch.outer(torch.arange(tokens).float(), rope["rope_theta"] ** -exponent)


def rotate(x: Tensor, angles: Tensor, interleaved: bool = False) -> Tensor:
    """Turns pairs of `x[batch, heads, tokens, dim]` by `angles[tokens, pairs]`.

    Pair i is (i, i + pairs), or (2i, 2i + 1) if interleaved. What lies beyond
    the last pair is left as it is.
    """
    turned, rest = x.split([2 * angles.shape[-1], x.shape[-1] - 2 * angles.shape[-1]], dim=-1)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Softmax attention of `[batch, heads, tokens, dim]`, each token over those up to it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[batch, tokens, heads * dim]` to `[batch, heads, tokens, dim]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def visible(tokens: int, layer: Config) -> Tensor:
    """`[tokens, tokens]`: which keys each query of an attention layer sees."""
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)
    seen = key <= query
    if layer.get("sliding_window") is not None:
        seen &= query - key < layer["sliding_window"]
    if layer.get("attention_chunk_size") is not None:
        seen &= query // layer["attention_chunk_size"] == key // layer["attention_chunk_size"]
    return seen


def capped_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """Softmax attention of `[batch, heads, tokens, dim]` over the keys that are `seen`.

    Scores are drawn under `cap` by a tanh. `sinks[heads]` are logits of one key more for
    each head, which has no value.
    """
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1] @ v
    return scores.softmax(-1) @ v


class Attention(nn.Module):
    """Grouped-query attention, over all tokens or a window, maybe with another's keys."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        self.layer = layer
        self.heads = layer["num_attention_heads"]
        self.kv_heads = layer["num_key_value_heads"]
        self.head_dim = layer["head_dim"]
        self.rope = layer.get("rope_parameters", DEFAULT_ROPE)
        bias = layer.get("attention_bias", False)
        v_dim = layer.get("head_dim_v") or self.head_dim
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * v_dim, hidden, bias=bias)
        self.qk_norm = layer.get("qk_norm", False)
        if self.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps)
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if layer.get("sinks") else None
        special = ("sliding_window", "attention_chunk_size", "sinks", "softcap")
        self.is_plain = not any(layer.get(key) for key in special)
        self._sources: list[Attention] = []  # in a list, so as not to be a submodule
        self._is_shared = False
        self._last: tuple[Tensor, Tensor] | None = None
        if layer.get("share_cache_of") is not None:
            return
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * v_dim, bias=bias)
        if self.qk_norm:
            self.k_norm = RMSNorm(self.head_dim, eps)

    def read_from(self, source: "Attention") -> None:
        """Takes the keys and values of an earlier layer instead of its own."""
        self._sources = [source]
        source._is_shared = True

    def _turn(self, x: Tensor) -> Tensor:
        if self.rope is None:
            return x
        rotary_dim = int(self.head_dim * self.rope.get("partial_rotary_factor", 1.0))
        return rotate(x, rotary_angles(x.shape[2], rotary_dim, self.rope))

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for source in self._sources:
            assert source._last is not None
            return source._last
        k, v = (split_heads(proj(x), self.kv_heads) for proj in (self.k_proj, self.v_proj))
        k = self._turn(self.k_norm(k) if self.qk_norm else k)
        self._last = (k, v) if self._is_shared else None
        return k, v

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        q = split_heads(self.q_proj(x), self.heads)
        q = self._turn(self.q_norm(q) if self.qk_norm else q)
        group = self.heads // self.kv_heads
        k, v = (part.repeat_interleave(group, dim=1) for part in self._keys_and_values(x))
        if self.is_plain:
            out = causal_attention(q, k, v, self.head_dim**-0.5)
        else:
            seen, cap = visible(x.shape[1], self.layer), self.layer.get("softcap")
            out = capped_attention(q, k, v, seen, cap, self.sinks)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLA(nn.Module):
    """Multi-head latent attention, with keys and values expanded from the latent."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        self.heads = layer["num_attention_heads"]
        self.nope, self.pe = layer["qk_nope_head_dim"], layer["qk_rope_head_dim"]
        self.v_dim, self.rank = layer["v_head_dim"], layer["kv_lora_rank"]
        self.rope = layer.get("rope_parameters", DEFAULT_ROPE)
        self.interleaved = layer.get("rope_interleave", True)
        q_out = self.heads * (self.nope + self.pe)
        self.q_rank = layer.get("q_lora_rank")
        if self.q_rank is None:
            self.q_proj = nn.Linear(hidden, q_out, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, self.q_rank, bias=False)
            self.q_a_layernorm = RMSNorm(self.q_rank, eps)
            self.q_b_proj = nn.Linear(self.q_rank, q_out, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.rank + self.pe, bias=False)
        self.kv_a_layernorm = RMSNorm(self.rank, eps)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.nope + self.v_dim), bias=False)
        self.o_proj = nn.Linear(self.heads * self.v_dim, hidden, bias=False)

    def _queries(self, x: Tensor) -> Tensor:
        if self.q_rank is None:
            return self.q_proj(x)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        q = split_heads(self._queries(x), self.heads)
        q_nope, q_pe = q.split([self.nope, self.pe], dim=-1)
        latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.rank, self.pe], dim=-1)
        expanded = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), self.heads)
        k_nope, v = expanded.split([self.nope, self.v_dim], dim=-1)
        # One rotary key serves all heads.
        k_pe = split_heads(k_pe, 1)
        if self.rope is not None:
            angles = rotary_angles(x.shape[1], self.pe, self.rope)
            q_pe = rotate(q_pe, angles, self.interleaved)
            k_pe = rotate(k_pe, angles, self.interleaved)
        q = torch.cat([q_nope, q_pe], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, self.heads, -1, -1)], dim=-1)
        out = causal_attention(q, k, v, (self.nope + self.pe) ** -0.5)
        return self.o_proj(out.transpose(1, 2).flatten(2))
