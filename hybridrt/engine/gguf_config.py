"""What the metadata of a GGUF file says, in the words of the same model's `config.json`.

Facts are those of llama.cpp's converters. Each function takes what its model knows; what is
left is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybridrt.engine.gguf_metadata import Metadata
from hybridrt.engine.sources import mapped

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor by which the wave lengths of a rotary embedding are multiplied."""


def _sizes(meta: Metadata) -> dict[str, Any]:
    """What models with attention have."""
    count, hidden = meta.peek("block_count"), meta.peek("embedding_length")
    heads = meta.take("attention.head_count")
    kv_heads = sorted({n for n in meta.by_layer("attention.head_count_kv", count) if n})
    if len(kv_heads) > 1:
        raise meta.wrong("attention.head_count_kv", f"{kv_heads}, should be one number")
    head_dim = meta.take("attention.key_length", hidden // heads)
    meta.expect("attention.value_length", head_dim)
    meta.expect("rope.dimension_count", head_dim)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads[0] if kv_heads else heads,
        "head_dim": head_dim,
        "max_position_embeddings": meta.take("context_length"),
        "rms_norm_eps": _eps(meta),
    }


def _eps(meta: Metadata) -> float:
    return meta.take("attention.layer_norm_rms_epsilon")


def _rope(meta: Metadata, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters`."""
    theta = {"rope_theta": meta.take("rope.freq_base", 10_000.0)}
    kind = meta.take("rope.scaling.type", "none")
    factor = meta.take("rope.scaling.factor", None)
    original = meta.take("rope.scaling.original_context_length", None)
    meta.take("rope.scaling.finetuned", None)
    if kind not in ("none", "linear", "yarn"):
        raise meta.wrong("rope.scaling.type", f"{kind!r}, should be 'none', 'linear' or 'yarn'")
    if meta.has(ROPE_FACTORS):
        if kind != "none":
            raise meta.wrong("rope.scaling.type", f"{kind!r} beside {ROPE_FACTORS}")
        factors = mapped(meta.file.tensors[ROPE_FACTORS]).tolist()
        longest = sizes["max_position_embeddings"]
        scaling = {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": longest,
        }
    elif kind == "none":
        scaling = {"rope_type": "default"}
    else:
        scaling = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = original
    return {"rope_parameters": {**theta, **scaling}}


def _mamba_sizes(meta: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Width of the convolution, size of the state, heads or rank, and groups, under `names`."""
    keys = ("conv_kernel", "state_size", "time_step_rank", "group_count")
    return {name: meta.take(f"ssm.{key}") for name, key in zip(names, keys, strict=False)}


def _inner(meta: Metadata) -> tuple[int, float | int]:
    """Channels of the recurrence, and how many times the hidden size that is."""
    inner, hidden = meta.take("ssm.inner_size"), meta.peek("embedding_length")
    return inner, inner // hidden if inner % hidden == 0 else inner / hidden


def _biased(meta: Metadata, stem: str) -> bool:
    return any(name.endswith(f".{stem}.bias") for name in meta.file.tensors)


def _layers_with(meta: Metadata, stem: str) -> list[int]:
    """The layers that have a weight of that name."""
    pattern = rf"blk\.(\d+)\.{stem}(\.weight)?"
    found = (re.fullmatch(pattern, name) for name in meta.file.tensors)
    return sorted(int(match[1]) for match in found if match)


def llama(meta: Metadata) -> dict[str, Any]:
    """Llama, and models of its wiring."""
    meta.expect("expert_count", 0)
    meta.expect("expert_used_count", 0)
    sizes = _sizes(meta)
    return {
        "model_type": "llama",
        "intermediate_size": meta.take("feed_forward_length"),
        "attention_bias": _biased(meta, "attn_q"),
        "mlp_bias": _biased(meta, "ffn_gate"),
        **sizes,
        **_rope(meta, sizes),
    }


def mamba(meta: Metadata) -> dict[str, Any]:
    """Mamba and Falcon-Mamba."""
    for key in ("attention.head_count", "feed_forward_length"):
        meta.expect(key, 0)
    meta.take("context_length", None)  # arbitrary
    inner, expand = _inner(meta)
    # The norms of dt, B and C are Falcon-Mamba's.
    falcon = meta.take("ssm.dt_b_c_rms", False)
    return {
        "model_type": "falcon_mamba" if falcon else "mamba",
        "intermediate_size": inner,
        "expand": expand,
        "layer_norm_epsilon": _eps(meta),
        "use_bias": _biased(meta, "ssm_in"),
        "use_conv_bias": _biased(meta, "ssm_conv1d"),
        **_mamba_sizes(meta, ("conv_kernel", "state_size", "time_step_rank")),
    }


def jamba(meta: Metadata) -> dict[str, Any]:
    """Jamba."""
    count = meta.peek("block_count")
    sizes, (_, expand) = _sizes(meta), _inner(meta)
    routed = _layers_with(meta, "ffn_gate_inp")
    experts = meta.take("expert_count", 0), meta.take("expert_used_count", 0)
    used = {"num_experts": experts[0], "num_experts_per_tok": experts[1]}
    return {
        "model_type": "jamba",
        "intermediate_size": meta.take("feed_forward_length"),
        "mamba_expand": expand,
        "mamba_conv_bias": _biased(meta, "ssm_conv1d"),
        "mamba_proj_bias": _biased(meta, "ssm_in"),
        **_every(meta, "attn_layer", _layers_with(meta, "attn_q"), count),
        **_every(meta, "expert_layer", routed, count),
        **(used if routed else {"num_experts": 1, "num_experts_per_tok": 1}),
        **sizes,
        **_mamba_sizes(meta, ("mamba_d_conv", "mamba_d_state", "mamba_dt_rank")),
    }


def _every(meta: Metadata, name: str, at: Sequence[int], count: int) -> dict[str, int]:
    """`<name>_period` and `<name>_offset` of layers that stand at equal distances."""
    period = at[1] - at[0] if len(at) > 1 else count + 1
    offset = at[0] if at else count
    if list(at) != [i for i in range(count) if i % period == offset]:
        raise ValueError(f"{meta.file.path}: {name}s at {list(at)} don't stand at equal distances")
    return {f"{name}_period": period, f"{name}_offset": offset}


_MAMBA2 = ("mamba_d_conv", "mamba_d_state", "mamba_n_heads", "mamba_n_groups")


def falcon_h1(meta: Metadata) -> dict[str, Any]:
    """Falcon-H1, whose multipliers are in its weights."""
    sizes, (inner, _) = _sizes(meta), _inner(meta)
    mamba = _mamba_sizes(meta, _MAMBA2)
    return {
        "model_type": "falcon_h1",
        "intermediate_size": meta.take("feed_forward_length"),
        "attention_bias": _biased(meta, "attn_q"),
        "mlp_bias": _biased(meta, "ffn_gate"),
        "mamba_d_ssm": inner,
        "mamba_d_head": inner // mamba["mamba_n_heads"],
        "mamba_conv_bias": _biased(meta, "ssm_conv1d"),
        "mamba_proj_bias": _biased(meta, "ssm_in"),
        "projectors_bias": _biased(meta, "ssm_out"),
        "mamba_rms_norm": bool(_layers_with(meta, "ssm_norm")),
        "mamba_norm_before_gate": False,
        **sizes,
        **_rope(meta, sizes),
        **mamba,
    }


def nemotron_h(meta: Metadata) -> dict[str, Any]:
    """Nemotron-H without experts."""
    count, sizes = meta.peek("block_count"), _sizes(meta)
    meta.take("rope.freq_base", None)
    meta.take("rope.scaling.finetuned", None)
    inner, _ = _inner(meta)
    wide = {n for n in meta.by_layer("feed_forward_length", count) if n}
    kinds = {"attn_q": "*", "ssm_in": "M", "ffn_up": "-"}
    letters = {i: kinds[stem] for stem in kinds for i in _layers_with(meta, stem)}
    names = ("conv_kernel", "ssm_state_size", "mamba_num_heads", "n_groups")
    mamba = _mamba_sizes(meta, names)
    return {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "".join(letters.get(i, "?") for i in range(count)),
        "layer_norm_epsilon": sizes.pop("rms_norm_eps"),
        "attention_bias": _biased(meta, "attn_q"),
        "mamba_head_dim": inner // mamba["mamba_num_heads"],
        "use_bias": _biased(meta, "ssm_in"),
        "use_conv_bias": _biased(meta, "ssm_conv1d"),
        "mlp_bias": _biased(meta, "ffn_up"),
        **({"intermediate_size": max(wide)} if wide else {}),
        **sizes,
        **mamba,
    }


def granite_hybrid(meta: Metadata) -> dict[str, Any]:
    """Granite 4.0 hybrids, with and without experts."""
    count, sizes = meta.peek("block_count"), _sizes(meta)
    if meta.take("rope.scaling.finetuned", False):
        raise meta.wrong("rope.scaling.finetuned", "True, should be False: Bamba isn't read")
    meta.take("rope.freq_base", None)
    experts, used = meta.take("expert_count", 0), meta.take("expert_used_count", 0)
    wide = meta.take("feed_forward_length")
    inner, expand = _inner(meta)
    mamba, attention = _mamba_sizes(meta, _MAMBA2), _layers_with(meta, "attn_q")
    # The head's size is the hidden size over the heads, always.
    if sizes["head_dim"] * sizes["num_attention_heads"] != meta.peek("embedding_length"):
        raise meta.wrong("attention.key_length", f"{sizes['head_dim']}, should fill the width")
    sizes.pop("head_dim")
    multipliers = {
        "attention_multiplier": meta.take("attention.scale"),
        "embedding_multiplier": meta.take("embedding_scale", 1.0),
        "residual_multiplier": meta.take("residual_scale", 1.0),
        "logits_scaling": meta.take("logit_scale", 1.0),
    }
    return {
        "model_type": "granitemoehybrid",
        "intermediate_size": wide,
        "shared_intermediate_size": meta.take("expert_shared_feed_forward_length", wide),
        "num_local_experts": experts,
        **({"num_experts_per_tok": used} if experts else {}),
        "layer_types": ["attention" if i in attention else "mamba" for i in range(count)],
        "position_embedding_type": "nope",
        "attention_bias": _biased(meta, "attn_q"),
        "mamba_expand": expand,
        "mamba_d_head": inner // mamba["mamba_n_heads"],
        "mamba_conv_bias": _biased(meta, "ssm_conv1d"),
        "mamba_proj_bias": _biased(meta, "ssm_in"),
        **multipliers,
        **sizes,
        **mamba,
    }


def lfm2(meta: Metadata) -> dict[str, Any]:
    """LFM2 without experts."""
    count, sizes = meta.peek("block_count"), _sizes(meta)
    attention = _layers_with(meta, "attn_q")
    if sizes["head_dim"] * sizes["num_attention_heads"] != meta.peek("embedding_length"):
        raise meta.wrong("attention.key_length", f"{sizes['head_dim']}, should fill the width")
    sizes.pop("head_dim")
    return {
        "model_type": "lfm2",
        "intermediate_size": meta.take("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "norm_eps": sizes.pop("rms_norm_eps"),
        "conv_L_cache": meta.take("shortconv.l_cache"),
        "conv_bias": _biased(meta, "shortconv.conv"),
        "layer_types": ["full_attention" if i in attention else "conv" for i in range(count)],
        **sizes,
        **_rope(meta, sizes),
    }
