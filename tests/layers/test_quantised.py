"""Caches of eight-bit numbers: read back at once, so that no cut of a sequence shows."""

import pytest
import torch
from torch import Tensor

from hybridrt.cache.spec import CacheFormat
from hybridrt.kernels.quantise import dequantise
from hybridrt.layers.attention import Attention
from tests.harness.batches import Row, make_batch
from tests.harness.bench import POISON, Bench, Setting, alone, random_tokens
from tests.harness.layer_rows import BY_REASON, LayerRow
from tests.harness.tolerance import assert_close, rms

ATTENTION, MLA_ROW = BY_REASON["attention"], BY_REASON["MLA"]
ROWS = [
    pytest.param(BY_REASON[reason], dtype, id=f"{reason}-{dtype}")
    for reason, dtypes in {
        "attention": ("fp8_e4m3", "int8"),
        "attention, large values": ("fp8_e4m3", "int8"),
        "attention, window": ("int8",),
        "attention, chunks": ("fp8_e4m3",),
        "attention, wide window, small values, sinks": ("int8",),
        "attention, shared window": ("int8",),
        "MLA": ("fp8_e4m3",),
        "MLA with low rank queries": ("fp8_e4m3",),
        "MLA without a rotated part": ("fp8_e4m3",),
        "sparse MLA": ("fp8_e4m3",),
    }.items()
    for dtype in dtypes
]


@pytest.mark.parametrize(("row", "dtype"), ROWS)
def test_alone_is_batched_is_chunked_is_token_by_token(row: LayerRow, dtype: str) -> None:
    xs = {name: random_tokens(21 + 7 * seed, seed) for seed, name in enumerate("abc")}
    expected = {name: alone(row, x, dtype) for name, x in xs.items()}
    for page_size, block, layout, chunk in (
        (16, 4, "NHD", 35),
        (4, 4, "HND", 1),
        (16, 16, "HND", 5),
        (1, 1, "NHD", 8),
    ):
        bench = Bench(row, Setting(page_size, block, layout, kv_cache_dtype=dtype), num_pages=120)
        while work := [
            (name, x[bench.num_tokens(name) :][:chunk])
            for name, x in xs.items()
            if bench.num_tokens(name) < len(x)
        ]:
            starts = {name: bench.num_tokens(name) for name, _ in work}
            for name, out in bench.step(work).items():
                whole = expected[name]
                assert_close(out, whole[starts[name] : starts[name] + len(out)], among=whole)


@pytest.mark.parametrize(("row", "dtype"), ROWS)
def test_a_little_off_the_exact_cache(row: LayerRow, dtype: str) -> None:
    x = random_tokens(40, seed=1)
    exact = alone(row, x)
    error = rms(alone(row, x, dtype) - exact) / rms(exact)
    assert 1e-4 < error < 0.1


def _states(row: LayerRow, **choices: object) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    layer = row.make()
    layer.cache_format = CacheFormat(**choices)  # type: ignore[arg-type]
    return [(state.name, state.shape, state.dtype) for state in layer.cache_spec.states]


def test_declared_states() -> None:
    f32, fp8, bf16 = torch.float32, torch.float8_e4m3fn, torch.bfloat16
    sizes = {"kernel_block_size": 8}
    assert _states(ATTENTION, **sizes, kv_cache_dtype="fp8_e4m3") == [("kv", (2, 8, 12), fp8)]
    states = _states(ATTENTION, **sizes, kv_cache_dtype="int8", kv_layout="NHD")
    assert states == [
        ("k", (8, 2, 6), torch.int8),
        ("v", (8, 2, 6), torch.int8),
        ("k_scale", (8, 2), f32),
        ("v_scale", (8, 2), f32),
    ]
    assert _states(MLA_ROW, **sizes, kv_cache_dtype="fp8_e4m3") == [
        ("c_kv", (8, 16), fp8),
        ("k_pe", (8, 4), bf16),
        ("c_kv_scale", (8, 1), f32),
    ]


def test_latents_in_int8_are_refused_by_name() -> None:
    layer = MLA_ROW.make()
    layer.name = "model.layers.3.mixer"
    layer.cache_format = CacheFormat(kv_cache_dtype="int8")
    with pytest.raises(ValueError, match=r"layers\.3\.mixer: kv_cache_dtype='int8'.*'fp8_e4m3'"):
        _ = layer.cache_spec


@pytest.mark.parametrize(("row", "dtype"), ROWS[:2] + ROWS[-1:])
def test_bug_11_padding_tokens_are_not_cached(row: LayerRow, dtype: str) -> None:
    bench = Bench(row, Setting(4, 4, kv_cache_dtype=dtype))
    batch = make_batch([Row(0, 3, (5,))], num_decodes=0, block_size=4, padding=6)
    with torch.inference_mode():
        bench.layer(random_tokens(9, seed=0), batch)
    assert bench.pool.ne(POISON).any(dim=1).nonzero().flatten().tolist() == [5]
    one_token = Bench(row, Setting(4, 4, kv_cache_dtype=dtype))
    batch = make_batch([Row(0, 4, (5,))], num_decodes=0, block_size=4)
    with torch.inference_mode():
        one_token.layer(random_tokens(9, seed=0)[:4], batch)
    # Of the fourth token nothing was written: some bytes differ only since it was now.
    changed = one_token.pool[5].ne(bench.pool[5])
    assert changed.any() and bench.pool[5][changed].eq(POISON).all()


def test_scales_of_the_checkpoint_divide_what_is_stored() -> None:
    bench = Bench(ATTENTION, Setting(4, 4, kv_cache_dtype="fp8_e4m3"))
    layer = bench.layer
    assert isinstance(layer, Attention)
    assert layer.k_scale.tolist() == layer.v_scale.tolist() == [1.0, 1.0]
    layer.k_scale.copy_(torch.tensor([2.0, 0.01]))
    draw = torch.Generator().manual_seed(0)
    k, v = (5 * torch.randn(3, 2, 6, generator=draw) for _ in range(2))
    batch = make_batch([Row(0, 3, (5,))], num_decodes=0, block_size=4)
    layer.update_kv_cache(k, v, batch)
    cached = layer.cached
    for stored, scale, exact in ((cached.k, layer.k_scale, k), (cached.v, layer.v_scale, v)):
        back = dequantise(stored[5, :, :3], scale[:, None, None], torch.float32).transpose(0, 1)
        most = 448 * scale[:, None]
        torch.testing.assert_close(back, exact.clamp(-most, most), rtol=0.0625, atol=2e-3)


def _outputs(row: LayerRow, dtype: str, layout: str, x: Tensor) -> Tensor:
    bench = Bench(row, Setting(16, 4, layout, kv_cache_dtype=dtype))
    parts = (x[:19], x[19:20], x[20:])
    return torch.cat([bench.step([("a", part)])["a"] for part in parts])


@pytest.mark.parametrize(("row", "dtype"), ROWS)
def test_either_layout_gives_the_same_bits(row: LayerRow, dtype: str) -> None:
    x = random_tokens(40, seed=2)
    assert torch.equal(_outputs(row, dtype, "HND", x), _outputs(row, dtype, "NHD", x))
