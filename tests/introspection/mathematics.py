"""What layers should hold, token by token, as the papers write it; in float64, by hand.

Projections are those of the layer's own linear modules, taken by hooks from one pass over all
tokens at once; what follows from them is computed here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt import LLM
from hybridrt.layers.linear import Linear
from tests.session.open_sessions import open_llm

Captured = dict[str, Tensor]
"""Per linear module of a layer, by name, its outputs for all tokens."""


def expected(name: str, tokens: list[int], mixer: str | None = None) -> list[dict[str, Tensor]]:
    """What each cached layer of a checkpoint (with a mixer) should hold behind these tokens."""
    llm = open_llm(name, enable_prefix_caching=False, max_num_batched_tokens=512)
    captured = _capture(llm, tokens)
    layers = llm.engine.model.cached_layers()
    return [
        _FORMULAS[plan.mixer](layers[plan.name], captured[plan.name])
        for plan in llm.plan.layers
        if mixer in (None, plan.mixer)
    ]


def _capture(llm: LLM, tokens: list[int]) -> dict[str, Captured]:
    seen: dict[str, Captured] = {}
    handles: list[Any] = []

    def note(layer: str, child: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Tensor) -> None:
            assert len(output) == len(tokens), "all tokens in one step"
            seen.setdefault(layer, {})[child] = output.double().clone()

        return hook

    for layer_name, layer in llm.engine.model.cached_layers().items():
        seen[layer_name] = {}
        for child, module in layer.named_modules():
            if isinstance(module, Linear):
                handles.append(module.register_forward_hook(note(layer_name, child)))
    with llm.session(tokens) as session:
        _ = session.logits
    for handle in handles:
        handle.remove()
    return seen


def _angles(rope: Any, count: int, dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin of `position * base^(-2j / dim)`, `[tokens, dim / 2]` (RoFormer, 2104.09864)."""
    base = rope.config.rope_theta
    frequencies = base ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.arange(count).double()[:, None] * frequencies
    return angles.cos(), angles.sin()


def _attention(layer: Any, captured: Captured) -> dict[str, Tensor]:
    cfg = layer.config
    heads, dim = cfg.num_key_value_heads, cfg.head_dim
    queries = cfg.num_attention_heads * dim
    _, k, v = captured["qkv_proj"].split([queries, heads * dim, heads * cfg.value_dim], dim=-1)
    k, v = k.unflatten(-1, (heads, dim)), v.unflatten(-1, (heads, cfg.value_dim))
    cos, sin = (part[:, None] for part in _angles(layer.rope, len(k), dim))
    first, second = k.chunk(2, dim=-1)
    return {"k": torch.cat([first * cos - second * sin, second * cos + first * sin], -1), "v": v}


def _mla(layer: Any, captured: Captured) -> dict[str, Tensor]:
    cfg, both = layer.config, captured["kv_a_proj_with_mqa"]
    c_kv, k_pe = both.split([cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1)
    norm = layer.kv_a_layernorm
    c_kv = c_kv * (c_kv.square().mean(-1, keepdim=True) + cfg.latent_norm_eps) ** -0.5
    cos, sin = _angles(layer.rope, len(k_pe), cfg.qk_rope_head_dim)
    even, odd = k_pe[:, 0::2], k_pe[:, 1::2]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(1)
    return {"c_kv": c_kv * norm.weight.double(), "k_pe": turned}


def _convolved(x: Tensor, conv: Any, *, silu: bool = True) -> tuple[Tensor, Tensor]:
    """Of inputs the causal convolution of each channel, and the last inputs, oldest first."""
    taps = conv.weight[:, 0].double()
    width = taps.shape[1]
    padded = torch.cat([x.new_zeros(width - 1, x.shape[1]), x])
    y = torch.stack([(padded[t : t + width].T * taps).sum(-1) for t in range(len(x))])
    if conv.bias is not None:
        y = y + conv.bias.double()
    return F.silu(y) if silu else y, padded[len(padded) - width + 1 :]


def _mamba1(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """`h = exp(dt A) h + dt B x` (Mamba, arXiv 2312.00752, algorithm 2)."""
    x, last = _convolved(captured["in_proj"].chunk(2, dim=-1)[0], layer.conv1d)
    n = layer.config.state_size
    B = captured["x_proj"][:, -2 * n : -n]
    dt, A = F.softplus(captured["dt_proj"]), -layer.A_log.double().exp()
    h = torch.zeros_like(A)
    for t in range(len(x)):
        h = (dt[t][:, None] * A).exp() * h + (dt[t] * x[t])[:, None] * B[t]
    return {"conv_state": last, "ssm_state": h}


def _mamba2(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """`h = exp(dt A) h + dt x B^T` in each head (Mamba-2, arXiv 2405.21060, section 7)."""
    cfg = layer.config
    heads, groups = cfg.num_heads, cfg.n_groups
    inner, size = heads * cfg.head_dim, groups * cfg.state_size
    _, xBC, dt = captured["in_proj"].split([inner, inner + 2 * size, heads], dim=-1)
    xBC, last = _convolved(xBC, layer.conv1d)
    x = xBC[:, :inner].unflatten(-1, (heads, -1))
    B = xBC[:, inner : inner + size].unflatten(-1, (groups, -1))
    dt, A = F.softplus(dt + layer.dt_bias.double()), -layer.A_log.double().exp()
    h = x.new_zeros(heads, cfg.head_dim, cfg.state_size)
    for t in range(len(x)):
        for i in range(heads):
            update = dt[t, i] * torch.outer(x[t, i], B[t, i * groups // heads])
            h[i] = (dt[t, i] * A[i]).exp() * h[i] + update
    return {"conv_state": last, "ssm_state": h}


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def _delta_rule(k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """`S = D S + beta k (v - (D S)^T k)^T`, `[heads, k, v]` (arXiv 2412.06464, equation 10).

    `log_decay` of D is one of a head, or of each of its key channels (arXiv 2510.26692).
    """
    S = k.new_zeros(k.shape[1], k.shape[2], v.shape[2])
    for t in range(len(k)):
        for h in range(k.shape[1]):
            S[h] = log_decay[t, h].exp().reshape(-1, 1) * S[h]
            S[h] += beta[t, h] * torch.outer(k[t, h], v[t, h] - S[h].T @ k[t, h])
    return S


def _gated_delta_net(layer: Any, captured: Captured) -> dict[str, Tensor]:
    cfg = layer.config
    keys, heads = cfg.num_key_heads, cfg.num_value_heads
    d_k, d_v, shared = cfg.key_head_dim, cfg.value_head_dim, heads // keys
    channels, values = 2 * keys * d_k + heads * d_v, heads * d_v
    inputs, _, b, a = captured["in_proj"].split([channels, values, heads, heads], dim=-1)
    qkv, last = _convolved(inputs, layer.conv1d)
    k = _unit(qkv[:, keys * d_k : 2 * keys * d_k].unflatten(-1, (keys, -1)))
    v = qkv[:, 2 * keys * d_k :].unflatten(-1, (heads, -1))
    decay = -layer.A_log.double().exp() * F.softplus(a + layer.dt_bias.double())
    S = _delta_rule(k.repeat_interleave(shared, 1), v, decay, torch.sigmoid(b))
    return {"conv_state": last, "ssm_state": S}


def _kda(layer: Any, captured: Captured) -> dict[str, Tensor]:
    heads = layer.config.num_heads
    parts = captured["in_proj"].split(list(layer.in_proj.parts.values()), dim=-1)
    found: dict[str, Tensor] = {}
    convolved: dict[str, Tensor] = {}
    for name, x in zip("qkv", parts, strict=False):
        y, found[f"{name}_conv_state"] = _convolved(x, getattr(layer, f"{name}_conv1d"))
        convolved[name] = y.unflatten(-1, (heads, -1))
    f = (captured["f_b_proj"] + layer.dt_bias.double()).unflatten(-1, (heads, -1))
    decay = -layer.A_log.double().exp().reshape(-1, 1) * F.softplus(f)
    beta = torch.sigmoid(parts[-1])
    S = _delta_rule(_unit(convolved["k"]), convolved["v"], decay, beta)
    return found | {"ssm_state": S}


def _lightning(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """`S = decay S + v k^T` with a fixed decay of each head (arXiv 2401.04658)."""
    heads = layer.config.num_attention_heads
    _, k, v = F.silu(captured["qkv_proj"]).unflatten(-1, (heads, -1)).chunk(3, dim=-1)
    rate = [-layer.config.decay_scale * 2 ** (-8 * (h + 1) / heads) for h in range(heads)]
    decay = torch.tensor(rate).double().exp()[:, None, None]
    S = k.new_zeros(heads, k.shape[2], k.shape[2])
    for t in range(len(k)):
        S = decay * S + v[t][:, :, None] * k[t][:, None, :]
    return {"kv_state": S}


def _short_conv(layer: Any, captured: Captured) -> dict[str, Tensor]:
    B, _, x = captured["in_proj"].chunk(3, dim=-1)
    return {"conv_state": _convolved(B * x, layer.conv, silu=False)[1]}


def _mlstm(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """`C = f C + i k v^T` and `n = f n + i k` with exponential gates (arXiv 2405.04517)."""
    cfg = layer.config
    _, k, v, _ = captured["in_proj"].split(list(layer.in_proj.parts.values()), dim=-1)
    k, v = (part.unflatten(-1, (cfg.num_heads, -1)) for part in (k, v))
    bent = cfg.gate_soft_cap * torch.tanh(captured["gates"] / cfg.gate_soft_cap)
    i, f = bent.chunk(2, dim=-1)
    i, f = i.exp(), torch.sigmoid(f)
    C = k.new_zeros(cfg.num_heads, k.shape[2], v.shape[2])
    n = k.new_zeros(cfg.num_heads, k.shape[2])
    for t in range(len(k)):
        C = f[t][:, None, None] * C + i[t][:, None, None] * k[t][:, :, None] * v[t][:, None, :]
        n = f[t][:, None] * n + i[t][:, None] * k[t]
    return {"memory": C, "normaliser": n}


def _rwkv(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """Sums of `exp(k) v` and `exp(k)` that fade by `exp(-exp(w))` (arXiv 2305.13048, eq. 16)."""
    k, v, fade = captured["key"], captured["value"], (-layer.time_decay.double().exp()).exp()
    numerator, denominator = torch.zeros_like(k[0]), torch.zeros_like(k[0])
    for t in range(len(k)):
        numerator = fade * numerator + k[t].exp() * v[t]
        denominator = fade * denominator + k[t].exp()
    return {"numerator": numerator, "denominator": denominator}


def _rg_lru(layer: Any, captured: Captured) -> dict[str, Tensor]:
    """`h = a h + sqrt(1 - a^2) i x`, `a = exp(-8 r softplus(L))` (arXiv 2402.19427, eq. 1 to 4)."""
    unit = layer.rg_lru
    x, last = _convolved(captured["linear_xy"].chunk(2, dim=-1)[0], layer.conv_1d, silu=False)
    i, r = (_block_gate(unit, gate, x) for gate in ("input", "recurrent"))
    a = (-8 * r * F.softplus(unit.recurrent_param.double())).exp()
    h = i[0] * x[0]
    for t in range(1, len(x)):
        h = a[t] * h + (1 - a[t].square()).sqrt() * i[t] * x[t]
    return {"conv_state": last, "lru_state": h}


def _block_gate(unit: Any, name: str, x: Tensor) -> Tensor:
    """`sigmoid(W x + b)` with a block diagonal W."""
    blocks = unit.get_parameter(f"{name}_gate_weight").double()
    parts = x.chunk(len(blocks), dim=-1)
    products = torch.cat([part @ block for part, block in zip(parts, blocks, strict=True)], dim=-1)
    return torch.sigmoid(products + unit.get_parameter(f"{name}_gate_bias").double().flatten())


def without_peak(mixer: str, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums as such, where a layer keeps them divided by the `exp` of their largest exponent."""
    if mixer not in ("mlstm", "rwkv"):
        return dict(held)
    scale = held["peak"].double().exp()
    sums = {n: x for n, x in held.items() if n not in ("peak", "last_input")}
    return {n: x * scale.reshape(-1, *[1] * (x.dim() - 1)) for n, x in sums.items()}


def _token_shift(layer: Any, captured: Captured) -> dict[str, Tensor]:
    return {}


_FORMULAS = {
    "attention": _attention,
    "mla": _mla,
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gated_delta_net": _gated_delta_net,
    "kda": _kda,
    "lightning": _lightning,
    "short_conv": _short_conv,
    "mlstm": _mlstm,
    "rwkv": _rwkv,
    "rg_lru": _rg_lru,
    "token_shift": _token_shift,
}
