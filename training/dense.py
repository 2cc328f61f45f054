"""`hybrid_stack` written plainly: dense, differentiable, with no cache.

It is what the demo checkpoint is trained with, and it is the oracle of the
tests: it shares no code with the runtime, its `state_dict` is the checkpoint,
and every mixer reads as its paper. Input is `[batch, tokens]` without padding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.mamba import Mamba1, Mamba2

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


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        self.heads = layer["num_attention_heads"]
        self.kv_heads = layer["num_key_value_heads"]
        self.head_dim = layer["head_dim"]
        self.rope = layer.get("rope_parameters", DEFAULT_ROPE)
        bias = layer.get("attention_bias", False)
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        self.qk_norm = layer.get("qk_norm", False)
        if self.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps)
            self.k_norm = RMSNorm(self.head_dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(x), self.kv_heads)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            rotary_dim = int(self.head_dim * self.rope.get("partial_rotary_factor", 1.0))
            angles = rotary_angles(x.shape[1], rotary_dim, self.rope)
            q, k = rotate(q, angles), rotate(k, angles)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = causal_attention(q, k, v, self.head_dim**-0.5)
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


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        inner = layer["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """Softmax over all experts, then the best k; every expert computes every token."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        experts = layer["num_experts"]
        self.top_k = layer["num_experts_per_tok"]
        self.normalise = layer.get("norm_topk_prob", True)
        self.gate = nn.Linear(hidden, experts, bias=False)
        inner = {"intermediate_size": layer["moe_intermediate_size"]}
        self.experts = nn.ModuleList(MLP(hidden, eps, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same."""
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        share = x.new_zeros(*x.shape[:-1], len(self.experts)).scatter(-1, chosen, weights)
        outs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outs * share[..., None, :]).sum(-1)


MIXERS: dict[str, type[nn.Module]] = {
    "attention": Attention,
    "mla": MLA,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "mlp": MLP,
    "moe": MoE,
}


class Layer(nn.Module):
    """`x + mixer(norm(x))`."""

    def __init__(self, hidden: int, eps: float, layer: Config) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden, eps)
        self.mixer = MIXERS[layer["type"]](hidden, eps, layer)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens, hidden]` to the same; see `DenseStack.forward` for `memory`."""
        if memory is None or isinstance(self.mixer, (MLP, MoE)):
            return x + self.mixer(self.norm(x))
        if isinstance(self.mixer, (Mamba1, Mamba2)):
            return x + self.mixer(self.norm(x), memory)
        return x + self.mixer(self.norm(x)) * memory[:, None, None]


class Trunk(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config.get("rms_norm_eps", 1e-5)
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(hidden, eps, layer) for layer in config["layers"])
        self.norm = RMSNorm(hidden, eps)

    def forward(self, token_ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """`[batch, tokens]` to `[batch, tokens, hidden]`."""
        x = self.embed_tokens(token_ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if memory is None else memory[i])
        return self.norm(x)


class DenseStack(nn.Module):
    """The whole model: token ids `[batch, tokens]` to logits `[batch, tokens, vocab]`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Trunk(config)
        self.tied = config.get("tie_word_embeddings", True)
        if not self.tied:
            self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, token_ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """Logits of the next token, at every position.

        `memory[layer, row]`, for training and ablation, is 1 as a rule. Where it
        is 0, an attention or MLA layer adds nothing, and a Mamba layer sees its
        convolution's window only: its state is emptied at every token.
        """
        hidden = self.model(token_ids, memory)
        head = self.model.embed_tokens.weight if self.tied else self.lm_head.weight
        return hidden @ head.T


def randomise(model: DenseStack, seed: int, spread: float = 1.0) -> None:
    """Fills every parameter with random values under which a wrong cache shows in the logits.

    Matrices are scaled by their fan-in, so that every mixer's output is as large
    as its input; norms, biases and decays differ from channel to channel; decays
    reach from a few tokens to hundreds.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("A_log"):
            value = noise - 1.0
        elif name.endswith(("norm.weight", "layernorm.weight")):
            value = 1.0 + 0.2 * noise
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            value = noise - 2.0
        elif p.ndim == 1:
            value = 0.3 * noise
        else:
            value = noise * spread * p[0].numel() ** -0.5
        p.data.copy_(value)
