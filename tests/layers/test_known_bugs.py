"""Bugs that other systems had (the numbers are FACTS.md's), layer by layer."""

import pytest
import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import align
from hybridrt.layers.attention import Attention
from hybridrt.layers.mla import MLA
from tests.harness.allocations import nothing_larger_than
from tests.harness.batches import Row, make_batch
from tests.harness.bench import POISON, Bench, Setting, alone, random_tokens
from tests.harness.layer_rows import BY_REASON, LAYERS, ONE_OF_EACH, RECURRENT, LayerRow
from tests.harness.tolerance import assert_close

ATTENTION, MLA_ROW = BY_REASON["attention"], BY_REASON["MLA"]


WITH_BACKENDS = [
    pytest.param(row, backend, id=f"{row.reason}-{backend}")
    for backend in ("reference", "numba")
    for row in (LAYERS if backend == "reference" else RECURRENT)
]


def _by_reason(row: LayerRow) -> str:
    return row.reason


def _cache_views(bench: Bench) -> list[Tensor]:
    values = (value for module in bench.layer.modules() for value in vars(module).values())
    return [value for value in values if isinstance(value, Tensor)]


@pytest.mark.parametrize(("row", "backend"), WITH_BACKENDS)
def test_bug_08_a_sequence_on_anothers_pages_starts_from_nothing(
    row: LayerRow, backend: str
) -> None:
    """Not on poison, which is easy to see, but on what the other left: values like any."""
    bench = Bench(row, Setting(4, 2, state_backend=backend))
    bench.step([("old", random_tokens(41, seed=1))])
    old_pages, left = bench.pages("old"), bench.pool.clone()
    bench.drop("old")
    bench.pool.copy_(left)
    x = random_tokens(50, seed=2)
    expected = alone(row, x)
    # All the stale pages are taken at once, by a first step and by growing.
    first = bench.step([("new", x[:44])])["new"]
    assert bench.ever_held("new") >= set(old_pages)
    assert_close(first, expected[:44])
    assert_close(bench.step([("new", x[44:])])["new"], expected[44:], among=expected)


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("row", RECURRENT, ids=_by_reason)
def test_bug_09_recurrences_go_on_at_every_chunk(row: LayerRow, backend: str) -> None:
    x = random_tokens(48, seed=1)
    expected = alone(row, x)
    for chunk in (1, 2, 3, 5, 8, 13, 47):
        bench = Bench(row, Setting(state_backend=backend))
        parts = [bench.step([("a", part)])["a"] for part in x.split(chunk)]
        assert_close(torch.cat(parts), expected)


@pytest.mark.parametrize("row", RECURRENT, ids=_by_reason)
def test_bug_10_a_new_sequence_reads_no_nan_out_of_a_float32_state(row: LayerRow) -> None:
    """In bfloat16, with states in float32, both are NaN before the first token."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        bench = Bench(row, Setting())
        x = random_tokens(20, seed=1).bfloat16()
        outs = [bench.step([("a", part)])["a"] for part in (x[:1], x[1:9], x[9:])]
    finally:
        torch.set_default_dtype(before)
    assert torch.cat(outs).isfinite().all()
    for state in bench.layer.cache_spec.states:
        is_input = state.name.endswith(("conv_state", "last_input"))
        assert state.dtype == (torch.bfloat16 if is_input else torch.float32)


@pytest.mark.parametrize(("row", "backend"), WITH_BACKENDS)
def test_bug_11_a_batch_that_shrinks_writes_no_freed_page(row: LayerRow, backend: str) -> None:
    """The sequences that go on have all the pages they need, so freed ones must stay poison."""
    bench = Bench(row, Setting(16, 4, state_backend=backend))
    xs = {name: random_tokens(14, seed) for seed, name in enumerate("abcd")}
    expected = {name: alone(row, x) for name, x in xs.items()}
    bench.step([(name, x[:8]) for name, x in xs.items()])
    for t, leaving in enumerate("abc", start=8):
        freed = bench.pages(leaving)
        bench.drop(leaving)
        del xs[leaving]
        outs = bench.step([(name, x[t : t + 1]) for name, x in xs.items()])
        blocks = bench.pool.unflatten(0, (-1, len(bench.pool) // 40))[freed]
        assert blocks.eq(POISON).all()
        for name, out in outs.items():
            assert_close(out, expected[name][t : t + 1], among=expected[name])


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("row", [ATTENTION, MLA_ROW], ids=_by_reason)
def test_bug_11_padding_tokens_are_not_cached(row: LayerRow, kv_layout: str) -> None:
    bench = Bench(row, Setting(4, 4, kv_layout))
    rows = [Row(0, 3, blocks=(5,))]
    batch = make_batch(rows, num_decodes=0, block_size=4, padding=6)
    _write(bench, batch)
    written = bench.pool.ne(POISON).any(dim=1).nonzero().flatten().tolist()
    assert written == [5]
    layer = bench.layer
    for view in _cache_views(bench):
        tokens_first = view.transpose(1, 2) if isinstance(layer, Attention) else view
        assert tokens_first[5, :3].isfinite().all()
        assert tokens_first[5, 3].isnan().all()


def _write(bench: Bench, batch: ForwardBatch) -> list[Tensor]:
    """Random keys and values, or latents, through the layer's own writer."""
    draw = torch.Generator().manual_seed(0)
    layer, tokens = bench.layer, batch.num_tokens
    assert isinstance(layer, Attention | MLA)
    if isinstance(layer, Attention):
        cfg = layer.config
        shapes = [(tokens, cfg.num_key_value_heads, cfg.head_dim)] * 2
    else:
        shapes = [(tokens, layer.config.kv_lora_rank), (tokens, layer.config.qk_rope_head_dim)]
    first, second = (torch.randn(shape, generator=draw) for shape in shapes)
    layer.update_kv_cache(first, second, batch)
    return [first, second]


def _float32(raw: Tensor, offset: int, count: int) -> Tensor:
    return raw[offset : offset + 4 * count].contiguous().view(torch.float32)


@pytest.mark.parametrize("kernel_block_size", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
def test_bug_12_kernel_blocks_of_either_layout_hold_what_was_written(
    kv_layout: str, kernel_block_size: int
) -> None:
    """Read back byte by byte, by the layout as DESIGN has it, and through the layer's view."""
    bench = Bench(ATTENTION, Setting(8, kernel_block_size, kv_layout))
    blocks = [7, 3, 11, 2, 5, 19, 0, 23, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26]
    batch = make_batch([Row(0, 19, blocks)], num_decodes=0, block_size=kernel_block_size)
    k, v = _write(bench, batch)
    layer = bench.layer
    assert isinstance(layer, Attention)
    heads, dim = layer.config.num_key_value_heads, layer.config.head_dim
    for t in range(19):
        block, j = blocks[t // kernel_block_size], t % kernel_block_size
        raw = bench.pool[block, 32:]
        for head in range(heads):
            place = (head, j) if kv_layout == "HND" else (j, head)
            width = kernel_block_size if kv_layout == "HND" else heads
            offset = 4 * 2 * dim * (place[0] * width + place[1])
            expected = torch.cat([k[t, head], v[t, head]])
            assert torch.equal(_float32(raw, offset, 2 * dim), expected)
            assert torch.equal(layer.kv[block, head, j], expected)


@pytest.mark.parametrize("kernel_block_size", [1, 2, 4, 8])
def test_bug_12_kernel_blocks_of_latents_hold_what_was_written(kernel_block_size: int) -> None:
    bench = Bench(MLA_ROW, Setting(8, kernel_block_size))
    blocks = list(range(20, 0, -1))
    batch = make_batch([Row(0, 19, blocks)], num_decodes=0, block_size=kernel_block_size)
    c_kv, k_pe = _write(bench, batch)
    rank, rope_dim = c_kv.shape[1], k_pe.shape[1]
    behind_c_kv = align(4 * kernel_block_size * rank)
    for t in range(19):
        raw, j = bench.pool[blocks[t // kernel_block_size], 32:], t % kernel_block_size
        assert torch.equal(_float32(raw, 4 * j * rank, rank), c_kv[t])
        assert torch.equal(_float32(raw, behind_c_kv + 4 * j * rope_dim, rope_dim), k_pe[t])


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("row", LAYERS, ids=_by_reason)
def test_bug_17_what_a_layer_binds_is_the_pool_itself(row: LayerRow, kv_layout: str) -> None:
    bench = Bench(row, Setting(4, 2, kv_layout))
    views = [view for view in _cache_views(bench) if view.numel()]
    assert len(views) == len(bench.layer.cache_spec.states)
    for view in views:
        assert view.untyped_storage().data_ptr() == bench.pool.untyped_storage().data_ptr()
        assert view.stride(0) * view.element_size() == bench.pool.stride(0)


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize(("row", "backend"), WITH_BACKENDS)
def test_bug_17_a_forward_makes_nothing_of_the_size_of_the_cache(
    row: LayerRow, kv_layout: str, backend: str
) -> None:
    bench = Bench(row, Setting(4, 2, kv_layout, backend), num_pages=2000)
    bench.largest = bench.pool.numel() // 20
    xs = {name: random_tokens(12, seed) for seed, name in enumerate("abc")}
    bench.step([("a", xs["a"][:11]), ("b", xs["b"][:5])])  # prefills
    bench.step([("a", xs["a"][11:]), ("b", xs["b"][5:]), ("c", xs["c"])])  # and a decode


@pytest.mark.parametrize("row", ONE_OF_EACH, ids=_by_reason)
def test_bug_17_a_copy_of_the_cache_would_be_seen(row: LayerRow) -> None:
    bench = Bench(row, Setting(4, 2), num_pages=2000)
    limit = bench.pool.numel() // 20
    with nothing_larger_than(limit, bench.pool), pytest.raises(AssertionError, match="made"):
        _cache_views(bench)[0].contiguous()
