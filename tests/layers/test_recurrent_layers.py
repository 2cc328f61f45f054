"""Layers that keep a state, beyond the Mamba family: what they declare and what they compute."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.minimax.configuration_minimax import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from hybridrt.cache.spec import CacheFormat
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.lightning_attention import LightningAttention, LightningAttentionConfig
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.short_conv import ShortConv, ShortConvConfig
from tests.harness.bench import Bench, Setting, random_tokens
from tests.harness.layer_rows import BY_REASON, LayerRow
from tests.harness.small_layers import HIDDEN
from tests.harness.tolerance import assert_close, rms

ROWS = [
    BY_REASON[r] for r in ("short convolution", "gated delta net", "KDA", "lightning attention")
]

Pair = tuple[nn.Module, CachedLayer]
"""A module of `transformers`, and ours of the same sizes."""


def _declared(row: LayerRow, **choices: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    layer = row.make()
    layer.cache_format = CacheFormat(**choices)
    assert layer.cache_spec.kind == "state"
    return {state.name: (state.shape, state.dtype) for state in layer.cache_spec.states}


def test_declared_states() -> None:
    short_conv, delta, kda, lightning = ROWS
    f32, bf16 = torch.float32, torch.bfloat16
    assert _declared(short_conv, state_dtype=bf16) == {"conv_state": ((2, 24), f32)}
    # q and k of 2 heads of 6, v of 4 heads of 5 go through the convolution.
    of_delta = {"conv_state": ((3, 44), f32), "ssm_state": ((4, 6, 5), f32)}
    assert _declared(delta) == of_delta
    assert _declared(delta, state_dtype=bf16) == {**of_delta, "ssm_state": ((4, 6, 5), bf16)}
    of_convs = {f"{part}_conv_state": ((3, 24), f32) for part in "qkv"}
    assert _declared(kda) == {**of_convs, "ssm_state": ((4, 6, 6), f32)}
    assert _declared(lightning, state_dtype=bf16) == {"kv_state": ((4, 6, 6), bf16)}


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="num_key_heads=3 should divide num_value_heads=4"):
        GatedDeltaNetConfig(
            hidden_size=8, num_key_heads=3, num_value_heads=4, key_head_dim=2, value_head_dim=2
        )
    with pytest.raises(ValueError, match=r"ShortConvConfig\.conv_kernel=1"):
        ShortConvConfig(hidden_size=8, conv_kernel=1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
def test_the_harness_sees_a_layer_that_forgets(row: LayerRow) -> None:
    x = random_tokens(24, seed=0)
    outs = [Bench(row, Setting()).step([("a", part)])["a"] for part in (x, x[12:])]
    first = slice(12, 13)
    assert (outs[0][first] - outs[1][:1]).abs().max() > 0.05 * outs[0].abs().max()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
def test_any_order_of_pages_gives_the_same_bits(row: LayerRow) -> None:
    x, outs = random_tokens(41, seed=0), []
    for page_seed in range(5):
        bench = Bench(row, Setting(page_seed=page_seed))
        bench.step([("other", random_tokens(17, seed=1))])
        first = bench.step([("a", x[:30]), ("other", random_tokens(1, seed=2))])["a"]
        outs.append(torch.cat([first, bench.step([("a", x[30:])])["a"]]))
    assert all(torch.equal(out, outs[0]) for out in outs)


def _lfm2() -> Pair:
    config = Lfm2Config(
        hidden_size=HIDDEN,
        conv_L_cache=4,
        conv_bias=True,
        layer_types=["conv"],
        num_hidden_layers=1,
    )
    sizes = ShortConvConfig(hidden_size=HIDDEN, conv_kernel=4, use_bias=True)
    return Lfm2ShortConv(config, 0), ShortConv(sizes)


def _qwen3_next() -> Pair:
    config = Qwen3NextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=5,
        linear_value_head_dim=7,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-3,
        layer_types=["linear_attention"],
        num_hidden_layers=1,
    )
    sizes = GatedDeltaNetConfig(
        hidden_size=HIDDEN,
        num_key_heads=2,
        num_value_heads=6,
        key_head_dim=5,
        value_head_dim=7,
        norm_eps=1e-3,
    )
    return Qwen3NextGatedDeltaNet(config, 0), GatedDeltaNet(sizes)


def _kimi() -> Pair:
    config = KimiLinearConfig(
        hidden_size=HIDDEN,
        linear_num_heads=3,
        linear_head_dim=6,
        rms_norm_eps=1e-3,
        layer_types=["linear_attention"],
        num_hidden_layers=1,
    )
    sizes = KimiDeltaAttentionConfig(hidden_size=HIDDEN, num_heads=3, head_dim=6, norm_eps=1e-3)
    return KimiLinearDeltaAttention(config, 0), KimiDeltaAttention(sizes)


def _minimax() -> Pair:
    config = MiniMaxConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        head_dim=6,
        num_hidden_layers=4,
        block_size=16,
        layer_types=["linear_attention"] * 4,
    )
    sizes = LightningAttentionConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        head_dim=6,
        decay_scale=1 - 2 / (3 + 1e-5) + 1e-5,  # of layer 2 of 4
    )
    return MiniMaxLightningAttention(config, 2), LightningAttention(sizes)


PAIRS = {"lfm2": _lfm2, "qwen3_next": _qwen3_next, "kimi_linear": _kimi, "minimax": _minimax}


@torch.no_grad()
def _copy(theirs: nn.Module, layer: CachedLayer) -> None:
    """Fills every parameter of the layer, and uses every tensor."""
    left = {name.replace("forget_gate.", ""): p for name, p in theirs.named_parameters()}
    if isinstance(layer, KimiDeltaAttention):  # checkpoints have three convolutions
        taps = left.pop("conv1d.weight").chunk(3)
        left |= {f"{part}_conv1d.weight": rows for part, rows in zip("qkv", taps, strict=True)}
    places: dict[str, Tensor] = dict(layer.named_parameters())
    for name, module in layer.named_children():
        if isinstance(module, FusedLinear):
            places |= module.checkpoint_layouts()[0]
            del places[f"{name}.weight"]
    for name, place in places.items():
        place.copy_(left.pop(name))
    assert not left


@torch.no_grad()
def _randomise(theirs: nn.Module) -> None:
    draw = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        spread = 0.5 if parameter.squeeze().dim() < 2 else parameter.shape[-1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=draw) * spread)


@torch.no_grad()
def _run_theirs(theirs: nn.Module, x: Tensor) -> Tensor:
    """A full forward without a cache."""
    options: dict[str, Any] = {"attention_mask": None}
    if isinstance(theirs, MiniMaxLightningAttention):
        options["position_embeddings"] = None
    out = theirs(x[None], **options)
    return (out[0] if isinstance(out, tuple) else out)[0]


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 150])
def test_equals_transformers(make: Callable[[], Pair], chunk: int) -> None:
    theirs, layer = make()
    _randomise(theirs)
    bench = Bench(LayerRow("", lambda: layer), Setting())
    _copy(theirs, layer)
    x = random_tokens(150, seed=1)
    parts = [bench.step([("a", part), ("b", part)])["a"] for part in x.split(chunk)]
    assert_close(torch.cat(parts), _run_theirs(theirs, x))


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_in_bfloat16_it_errs_at_most_twice_as_far_as_transformers(
    make: Callable[[], Pair],
) -> None:
    exact, _ = make()
    torch.set_default_dtype(torch.bfloat16)
    try:
        theirs, layer = make()
    finally:
        torch.set_default_dtype(torch.float32)
    _randomise(theirs)
    # Not the decays, which lightning attention there has rounded as well.
    exact.load_state_dict(dict(theirs.named_parameters()), strict=False)
    bench = Bench(LayerRow("", lambda: layer), Setting())
    _copy(theirs, layer)
    x = random_tokens(150, seed=1).bfloat16()
    ours = torch.cat([bench.step([("a", part)])["a"] for part in x.split(30)])
    assert ours.dtype == torch.bfloat16
    right = _run_theirs(exact, x.float())
    assert rms(ours - right) <= 2 * rms(_run_theirs(theirs, x) - right)
