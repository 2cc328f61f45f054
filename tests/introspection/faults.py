"""Mistakes that ports of models have, each planted into one layer of a right one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.cache.spec import Window
from hybridrt.kernels.gated import gated
from hybridrt.kernels.reference import delta_inputs
from hybridrt.layers import gated_delta_net, mamba1, mamba2, mlp, relu2, short_conv
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models.causal_lm import CausalLM

Plant = Callable[[CausalLM, Any], None]
"""Breaks a layer of a model."""

LONGEST = 96


def during(module: nn.Module, home: Any, name: str, replacement: Callable[..., Any]) -> None:
    """While `module` runs, `home.name` is `replacement(what it was, ...)`."""
    forward, right = module.forward, getattr(home, name)

    def wrong(*args: Any, **options: Any) -> Any:
        return replacement(right, *args, **options)

    def run(*args: Any, **options: Any) -> Any:
        with patch.object(home, name, wrong):
            return forward(*args, **options)

    module.forward = run


def method(module: Any, name: str, replacement: Callable[..., Any]) -> None:
    """`module.name` is `replacement(what it was, ...)`."""
    right = getattr(module, name)
    setattr(module, name, lambda *args, **options: replacement(right, *args, **options))


def argument(index: int, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Calls a function with one of its arguments changed."""

    def wrong(right: Callable[..., Any], *args: Any, **options: Any) -> Any:
        args = (*args[:index], change(args[index]), *args[index + 1 :])
        return right(*args, **options)

    return wrong


def config(module: Any, **changes: Any) -> None:
    """Other settings of a layer."""
    module.config = module.config.model_copy(update=changes)


def rope_base(_: CausalLM, layer: Any) -> None:
    attention = layer.self_attn
    wrong = attention.rope.config.model_copy(update={"rope_theta": 500.0})
    attention.rope = _prepared(Rope(wrong, attention.rope.dim))


def rope_pairs(_: CausalLM, layer: Any) -> None:
    attention = layer.self_attn
    attention.rope = _prepared(Rope(attention.rope.config, attention.rope.dim, interleaved=True))


def _prepared(rope: Rope) -> Rope:
    rope.prepare(LONGEST, torch.device("cpu"))
    return rope


class Shifted:
    """A rotary table one position off."""

    def __init__(self, rope: Rope) -> None:
        self.rope = rope

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.rope.apply(x, positions + 1)

    def apply_normed(self, *args: Any) -> tuple[Tensor, Tensor]:
        *rest, positions = args
        return self.rope.apply_normed(*rest, positions + 1)


def position_off_by_one(_: CausalLM, layer: Any) -> None:
    layer.self_attn.rope = Shifted(layer.self_attn.rope)


def partly_rotated(_: CausalLM, layer: Any) -> None:
    attention = layer.self_attn
    attention.rope = _prepared(Rope(attention.rope.config, attention.rope.dim // 2))


def swapped_gate_weights(_: CausalLM, layer: Any) -> None:
    weight = layer.mlp.gate_up_proj.weight
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def swapped_gate(_: CausalLM, layer: Any) -> None:
    def wrong(right: Any, x: Tensor, project: nn.Module, activation: Any) -> Tensor:
        return gated(torch.cat(project(x).chunk(2, dim=-1)[::-1], dim=-1), activation)

    during(layer.mlp, mlp, "project_gated", wrong)


def activation(_: CausalLM, layer: Any) -> None:
    layer.feed_forward.activation = "gelu_pytorch_tanh"


def no_query_norm(_: CausalLM, layer: Any) -> None:
    layer.self_attn.q_norm.forward = lambda x: x


def norm_skipped(_: CausalLM, layer: Any) -> None:
    layer.post_attention_layernorm.forward = lambda x: x


def norm_eps(_: CausalLM, layer: Any) -> None:
    layer.post_attention_layernorm.eps = 1e-2


def norm_without_one(_: CausalLM, layer: Any) -> None:
    norm = layer.post_feedforward_layernorm
    norm.forward = lambda x: RMSNorm.forward(norm, x)


def attention_scale(_: CausalLM, layer: Any) -> None:
    layer.self_attn.scale *= 1.5


def shared_block_scale(_: CausalLM, layer: Any) -> None:
    layer.shared_transformer.self_attn.scale *= 2**0.5


def window_short_by_one(_: CausalLM, layer: Any) -> None:
    attention = layer.self_attn
    config(attention, window=Window(attention.config.window.size - 1))


def no_softcap(_: CausalLM, layer: Any) -> None:
    config(layer.self_attn, softcap=None)


def key_heads_swapped(_: CausalLM, layer: Any) -> None:
    method(layer.self_attn, "update_kv_cache", argument(0, lambda k: k.flip(1)))


def value_heads_swapped(_: CausalLM, layer: Any) -> None:
    method(layer.self_attn, "update_kv_cache", argument(1, lambda v: v.flip(1)))


def heads_repeated_in_turn(_: CausalLM, layer: Any) -> None:
    """Query head h reads key head `h % n` where it should be `h // group`."""
    attention = layer.self_attn
    heads, keys = attention.config.num_attention_heads, attention.config.num_key_value_heads
    order = torch.arange(heads).view(-1, keys).T.flatten()

    def wrong(right: Any, q: Tensor, *rest: Any) -> Tensor:
        return right(q[:, order], *rest)[:, order.argsort()]

    method(attention, "attend", wrong)


def key_part_not_rotated(_: CausalLM, layer: Any) -> None:
    def wrong(right: Any, q_pe: Tensor, k_pe: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        q_pe, _, c_kv = right(q_pe, k_pe, *rest)
        return q_pe, k_pe, c_kv

    method(layer.self_attn, "_rotate_and_norm", wrong)


def router_not_normed(_: CausalLM, layer: Any) -> None:
    layer.mlp.gate.routing = layer.mlp.gate.routing._replace(normed=False)


def one_expert_less(_: CausalLM, layer: Any) -> None:
    gate = layer.feed_forward.gate
    gate.routing = gate.routing._replace(top_k=gate.routing.top_k - 1)


def no_scale_of_experts(_: CausalLM, layer: Any) -> None:
    layer.mlp.gate.routing = layer.mlp.gate.routing._replace(scale=1.0)


def no_shared_expert(_: CausalLM, layer: Any) -> None:
    layer.mlp.shared_experts = None


def no_correction_bias(_: CausalLM, layer: Any) -> None:
    layer.mlp.gate.e_score_correction_bias.zero_()


def no_residual_scale(_: CausalLM, layer: Any) -> None:
    layer.scale = 1.0


def reversed_taps(_: CausalLM, layer: Any) -> None:
    weight = layer.mamba.conv1d.weight
    weight.copy_(weight.flip(-1))


def taps_read_backwards(_: CausalLM, layer: Any) -> None:
    during(layer.conv, short_conv, "causal_conv1d", argument(1, lambda taps: taps.flip(-1)))


def no_conv_bias(_: CausalLM, layer: Any) -> None:
    during(layer.mamba, mamba1, "causal_conv1d", argument(2, lambda bias: None))


def conv_without_activation(_: CausalLM, layer: Any) -> None:
    during(layer.linear_attn, gated_delta_net, "causal_conv1d", _without_activation)


def _without_activation(right: Any, *args: Any, **options: Any) -> Tensor:
    return right(*args, **options, activation=None)


def inputs_and_outputs_swapped(_: CausalLM, layer: Any) -> None:
    def wrong(
        right: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Any
    ) -> Any:
        return right(x, dt, A, C, B, *rest)

    during(layer.mamba, mamba2, "ssd", wrong)


def rates_without_exp(_: CausalLM, layer: Any) -> None:
    wrong = argument(2, lambda A: -layer.mamba.A_log.abs())
    during(layer.mamba, mamba1, "selective_scan", wrong)


def decay_sign(_: CausalLM, layer: Any) -> None:
    during(layer.mamba, mamba2, "ssd", argument(2, lambda A: -A))


def no_skip(_: CausalLM, layer: Any) -> None:
    during(layer.mixer, mamba2, "ssd", argument(5, torch.zeros_like))


def dt_without_softplus(_: CausalLM, layer: Any) -> None:
    def wrong(right: Any, *args: Any, **options: Any) -> Tensor:
        with patch.object(F, "softplus", F.relu):
            return right(*args, **options)

    during(layer.mixer, mamba1, "scan_inputs", wrong)


def no_dt_bias(_: CausalLM, layer: Any) -> None:
    during(layer.mamba, mamba2, "scan_inputs", argument(1, torch.zeros_like))


def no_least_dt(_: CausalLM, layer: Any) -> None:
    config(layer.mixer, time_step_limit=(0.0, torch.inf))


def norm_before_gate(_: CausalLM, layer: Any) -> None:
    layer.mixer.norm.norm_before_gate = True


def relu_not_squared(_: CausalLM, layer: Any) -> None:
    method(layer.mixer, "forward", _relu_instead)


def _relu_instead(right: Any, x: Tensor) -> Tensor:
    with patch.object(relu2, "relu2", lambda x: x.clamp(min=0)):
        return right(x)


def keys_not_normed(_: CausalLM, layer: Any) -> None:
    def wrong(right: Any, *args: Any) -> Any:
        with patch.object(delta_inputs, "l2_norm", torch.Tensor.float):
            return right(*args)

    during(layer.linear_attn, gated_delta_net, "delta_inputs", wrong)


def delta_decay_sign(_: CausalLM, layer: Any) -> None:
    during(layer.linear_attn, gated_delta_net, "gated_delta_rule", argument(3, lambda g: g / 2))


def multipliers_forgotten(_: CausalLM, layer: Any) -> None:
    layer.mamba.multipliers = None


def key_multiplier_forgotten(_: CausalLM, layer: Any) -> None:
    layer.self_attn.scale = layer.self_attn.config.head_dim**-0.5


def embeddings_not_scaled(model: Any, _: Any) -> None:
    model.embed_scale = 1.0


def logits_not_capped(model: Any, _: Any) -> None:
    model.logit_softcap = None


def last_norm_eps(model: Any, _: Any) -> None:
    model.model.norm.eps = 1e-1


def small_then_large(model: Any, layer: Any) -> None:
    """The error of the next layer is a thousand times that of this one."""
    layer.self_attn.scale *= 1.002
    norm_skipped(model, model.model.layers[2])


@contextmanager
def half_precision_state(layer_name: str) -> Iterator[None]:
    """While a model is loaded, one layer of Mamba-2 declares its state in bfloat16."""
    right = mamba2.Mamba2.cache_spec.fget
    assert right is not None

    def cache_spec(mixer: Any) -> Any:
        if mixer.name != layer_name:
            return right(mixer)
        kept = mixer.cache_format
        mixer.cache_format = type(kept)(
            **{
                **{f: getattr(kept, f) for f in kept.__dataclass_fields__},
                "state_dtype": torch.bfloat16,
            }
        )
        try:
            return right(mixer)
        finally:
            mixer.cache_format = kept

    with patch.object(mamba2.Mamba2, "cache_spec", property(cache_spec)):
        yield
