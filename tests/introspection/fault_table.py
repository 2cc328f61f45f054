"""Which mistake is planted where, and what may be named as the first tensor that is wrong."""

from dataclasses import dataclass

from tests.introspection.faults import (
    Plant,
    activation,
    attention_scale,
    conv_without_activation,
    decay_sign,
    delta_decay_sign,
    dt_without_softplus,
    embeddings_not_scaled,
    heads_repeated_in_turn,
    inputs_and_outputs_swapped,
    key_heads_swapped,
    key_multiplier_forgotten,
    key_part_not_rotated,
    keys_not_normed,
    last_norm_eps,
    logits_not_capped,
    multipliers_forgotten,
    no_conv_bias,
    no_correction_bias,
    no_dt_bias,
    no_least_dt,
    no_query_norm,
    no_residual_scale,
    no_scale_of_experts,
    no_shared_expert,
    no_skip,
    no_softcap,
    norm_before_gate,
    norm_eps,
    norm_skipped,
    norm_without_one,
    one_expert_less,
    partly_rotated,
    position_off_by_one,
    rates_without_exp,
    relu_not_squared,
    reversed_taps,
    rope_base,
    rope_pairs,
    router_not_normed,
    shared_block_scale,
    small_then_large,
    swapped_gate,
    swapped_gate_weights,
    taps_read_backwards,
    value_heads_swapped,
    window_short_by_one,
)


@dataclass(frozen=True)
class Fault:
    """A mistake.

    `row` is that of the model in the table of tiny ones; `layer` the one that is broken, None
    for what stands outside of layers; `names` are those that may be named as the first tensor.
    """

    name: str
    row: str
    layer: int | None
    plant: Plant
    names: tuple[str, ...]


LLAMA, QWEN3, GEMMA2 = (
    "llama-grouped-heads",
    "qwen3-grouped-heads",
    "gemma2-windows-in-every-second-layer",
)
GEMMA3, DEEPSEEK2 = "gemma3_text-two-windows-to-one-without", "deepseek_v2-greedy-routing"
DEEPSEEK3, QWEN3_MOE = "deepseek_v3-grouped-routing", "qwen3_moe-experts-in-every-layer"
MAMBA, MAMBA2, JAMBA = (
    "mamba-tied-embeddings",
    "mamba2-two-groups",
    "jamba-experts-every-second-layer",
)
BAMBA, FALCON = "bamba-attention-in-the-middle", "falcon_h1-multipliers"
GRANITE, NEMOTRON = (
    "granitemoehybrid-experts-and-multipliers",
    "nemotron_h-no-step-below-time_step_min",
)
NEXT, LFM2 = "qwen3_next-attention-in-the-middle", "lfm2-attention-in-the-middle"
ZAMBA2 = "zamba2-one-block-used-twice"
KEYS, ATTENDED = ("k",), ("self_attn.o_proj",)

FAULTS = (
    Fault("rope base", LLAMA, 1, rope_base, KEYS),
    Fault("rope pairs", LLAMA, 2, rope_pairs, KEYS),
    Fault("position off by one", LLAMA, 1, position_off_by_one, KEYS),
    Fault("half of a head rotated", QWEN3, 1, partly_rotated, KEYS),
    Fault(
        "gate and up loaded the wrong way", LLAMA, 2, swapped_gate_weights, ("*gate_proj.weight",)
    ),
    Fault("gate and up swapped", QWEN3, 0, swapped_gate, ("mlp.down_proj",)),
    Fault("gelu for silu", JAMBA, 2, activation, ("feed_forward.down_proj",)),
    Fault("no norm of queries", QWEN3, 2, no_query_norm, ("self_attn.q_norm",)),
    Fault("no norm", LLAMA, 1, norm_skipped, ("post_attention_layernorm",)),
    Fault("norm eps", LLAMA, 2, norm_eps, ("post_attention_layernorm",)),
    Fault("norm weight without 1", GEMMA2, 1, norm_without_one, ("post_feedforward_layernorm",)),
    Fault("attention scale", LLAMA, 1, attention_scale, ATTENDED),
    Fault("scale of a shared block", ZAMBA2, 3, shared_block_scale, ("shared_*.o_proj",)),
    Fault("window one short", GEMMA3, 1, window_short_by_one, ATTENDED),
    Fault("no soft cap", GEMMA2, 3, no_softcap, ATTENDED),
    Fault("key heads swapped", LLAMA, 1, key_heads_swapped, KEYS),
    Fault("value heads swapped", GEMMA3, 2, value_heads_swapped, ("v",)),
    Fault("heads repeated in turn", QWEN3, 1, heads_repeated_in_turn, ATTENDED),
    Fault("key part not rotated", DEEPSEEK2, 1, key_part_not_rotated, ("k_pe",)),
    Fault("router without normalisation", QWEN3_MOE, 1, router_not_normed, ("mlp.gate", "mlp")),
    Fault("one expert less", JAMBA, 1, one_expert_less, ("feed_forward.gate", "feed_forward")),
    Fault("experts not scaled", DEEPSEEK3, 2, no_scale_of_experts, ("mlp.gate", "mlp")),
    Fault("no shared expert", DEEPSEEK3, 1, no_shared_expert, ("mlp",)),
    Fault("no correction bias", DEEPSEEK3, 2, no_correction_bias, ("*e_score_correction_bias",)),
    Fault("no residual scale", GRANITE, 1, no_residual_scale, ("post_attention_layernorm",)),
    Fault("taps loaded backwards", BAMBA, 2, reversed_taps, ("*conv1d.weight",)),
    Fault("taps read backwards", LFM2, 2, taps_read_backwards, ("conv.out_proj",)),
    Fault("no bias of the convolution", JAMBA, 2, no_conv_bias, ("mamba.x_proj",)),
    Fault("convolution without activation", NEXT, 0, conv_without_activation, ("ssm_state",)),
    Fault("B and C swapped", GRANITE, 0, inputs_and_outputs_swapped, ("ssm_state",)),
    Fault("A without exp", JAMBA, 3, rates_without_exp, ("ssm_state",)),
    Fault("sign of the decay", BAMBA, 0, decay_sign, ("ssm_state",)),
    Fault("no D", MAMBA2, 1, no_skip, ("mixer.norm", "mixer.out_proj")),
    Fault("dt without softplus", MAMBA, 1, dt_without_softplus, ("ssm_state",)),
    Fault("no bias of dt", FALCON, 1, no_dt_bias, ("ssm_state",)),
    Fault("no least dt", NEMOTRON, 3, no_least_dt, ("ssm_state",)),
    Fault("norm before the gate", MAMBA2, 2, norm_before_gate, ("mixer.norm", "mixer.out_proj")),
    Fault("relu not squared", NEMOTRON, 1, relu_not_squared, ("mixer.down_proj",)),
    Fault("keys of the delta rule not normed", NEXT, 2, keys_not_normed, ("ssm_state",)),
    Fault("half the decay of the delta rule", NEXT, 0, delta_decay_sign, ("ssm_state",)),
    Fault("multipliers forgotten", FALCON, 2, multipliers_forgotten, ("conv_state",)),
    Fault("key multiplier forgotten", FALCON, 1, key_multiplier_forgotten, ATTENDED),
    Fault("a small error before a large one", LLAMA, 1, small_then_large, ATTENDED),
    Fault("embeddings not scaled", GEMMA2, None, embeddings_not_scaled, ("embedding",)),
    Fault("logits not capped", GEMMA2, None, logits_not_capped, ("logits",)),
    Fault("eps of the last norm", LLAMA, None, last_norm_eps, ("norm",)),
)
