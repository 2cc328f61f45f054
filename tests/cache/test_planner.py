"""The planner: layers find their groups, kernel blocks and places in a page."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.planner import choose_kernel_block_sizes, tokens_of_a_page
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.spec import CacheSpec, State, Window
from hybridrt.config import EngineConfig
from tests.cache.stand_ins import CPU, StandIn, attention, plan_of, recurrent

MIB = 2**20


def sizes_of(layers: Sequence[StandIn], **options: Any) -> list[int]:
    """Tokens of a kernel block of each layer."""
    named = {f"layer.{i}": layer for i, layer in enumerate(layers)}
    sizes = choose_kernel_block_sizes(named, EngineConfig(model="stand-in", **options))
    return [sizes[name] for name in named]


def with_kernels(layer: StandIn, *sizes: int) -> StandIn:
    return replace(layer, kernel_block_sizes=sizes)


def test_layers_of_one_kind_and_window_are_a_group() -> None:
    layers = [attention(24), attention(24, window=Window(64)), recurrent(5, 3), attention(40)]
    layers += [attention(24, window=Window(64, chunked=True)), attention(8, window=Window(32))]
    layers += [attention(48, window=Window(64)), recurrent(7, 9)]
    plan = plan_of(layers, MIB)
    assert {group.name: group.layers for group in plan.groups} == {
        "full": ("layer.0", "layer.3"),
        "window-64": ("layer.1", "layer.6"),
        "state": ("layer.2", "layer.7"),
        "chunk-64": ("layer.4",),
        "window-32": ("layer.5",),
    }
    assert [row.index for row in plan.layers] == list(range(8))
    assert [row.window for row in plan.layers] == [x.cache_spec.window for x in layers]
    assert plan.group("chunk-64").window == Window(64, chunked=True)
    assert plan.bytes_for(100) == 100 * 64 + 64 * 72 + 32 * 8 + 64 * 24 + 22 + 50


def test_bug_19_a_long_irregular_stack_has_one_page_table_per_kind() -> None:
    # Ones, twos and primes in a row: their only common divisor is 1.
    layers: list[StandIn] = []
    for index, run in enumerate((1, 2, 5, 3, 7, 2, 11, 13, 1, 17)):
        layers += [attention(24 + 2 * index) if index % 2 else recurrent(9 + index, 7)] * run
    assert len(layers) == 62
    plan = plan_of(layers, 2**20)
    assert sorted(group.name for group in plan.groups) == ["full", "state"]
    assert sum(len(group.layers) for group in plan.groups) == 62
    pages = SequencePages(Pool(plan, CPU))
    pages.admit("sequence", 33)
    assert len(pages.tables("sequence")) == 2


window_layers = st.builds(
    lambda numbers, size, chunked: attention(2 * numbers, window=Window(size, chunked)),
    st.integers(1, 500),
    st.integers(1, 3000),
    st.booleans(),
)


@given(st.lists(window_layers, min_size=1, max_size=3), st.integers(1, 200))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_bug_20_a_draft_models_windows_neither_widen_pages_nor_lengthen_a_hit(
    extra: list[StandIn], conv_numbers: int
) -> None:
    layers = [attention(512), recurrent(conv_numbers, 1000), attention(256)]
    alone, both = plan_of(layers, 64 * MIB), plan_of([*layers, *extra], 64 * MIB)
    for group in alone.groups:
        beside = both.group(group.name)
        assert (beside.page_size, beside.page_bytes) == (group.page_size, group.page_bytes)
        assert beside.layers == group.layers and beside.parts == group.parts
    assert both.least_shared_prompt == alone.least_shared_prompt == 17


SPLIT = [attention(16)] + [recurrent(100, 1000), recurrent(333, 950)] * 6


def test_states_of_a_group_are_split_where_one_page_would_be_too_large() -> None:
    plan = plan_of(SPLIT, 400_000)
    state = plan.group("state")
    assert state.parts > 1 and plan.num_slabs >= 32
    rows = [row for row in plan.layers if row.kind == "state"]
    assert [row.part for row in rows] == sorted(row.part for row in rows)
    assert {row.part for row in rows} == set(range(state.parts))
    for part in range(state.parts):
        members = [row for row in rows if row.part == part]
        ends = [row.offset + row.block_bytes for row in members]
        assert [row.offset for row in members] == [0, *ends[:-1]], "end to end, without a gap"
        assert ends[-1] <= state.page_bytes <= state.page_stride
    assert state.sequence_bytes == sum(row.block_bytes for row in rows)
    assert state.padding_bytes == state.parts * state.page_stride - state.sequence_bytes


def test_parts_of_one_sequence_are_disjoint_in_the_pool() -> None:
    plan = plan_of(SPLIT, 400_000)
    pool = Pool(plan, CPU)
    pages = SequencePages(pool)
    pages.admit("a", 5)
    pages.admit("b", 5)
    (g,) = (g for g, group in enumerate(plan.groups) if group.kind == "state")
    for name in "ab":
        ids = pages.tables(name)[g].physical_ids
        for row in plan.layers:
            if row.kind == "state":
                pool.layer_pages(row)[ids[row.part]] += 1
    written = 2 * plan.group("state").sequence_bytes
    assert pool.bytes.max() == 1 and pool.bytes.sum() == written


def test_a_plan_that_pads_much_says_so() -> None:
    layers = [attention(8192, window=Window(1024))] * 52 + [attention(8192)] * 10
    plan = plan_of(layers, 256 * MIB)
    assert plan.padding_percent >= 3 and plan.num_slabs >= 32
    (note,) = plan.notes
    for word in ("less than 3 %", "'full'", f"{plan.padding_percent:.1f} %", "cache_memory"):
        assert word in note
    assert plan_of(layers, 8192 * MIB).notes == ()


def test_the_same_layers_give_the_same_plan_whatever_they_are_called() -> None:
    layers = [attention(90), recurrent(333, 1001), attention(46, window=Window(99))]
    assert plan_of(layers, 2**22) == plan_of(layers, 2**22)


def test_kernel_blocks_are_as_large_as_all_kernels_of_a_group_allow() -> None:
    layers = [
        with_kernels(attention(24), 16, 32, 64),
        attention(24, window=Window(64)),
        with_kernels(attention(24), 1, 8, 16, 64),
        recurrent(5, 3),
        with_kernels(attention(8, window=Window(32)), 1, 2, 4),
    ]
    assert sizes_of(layers, page_size=64)[:3] == [64, 64, 64]
    assert sizes_of(layers, page_size=48) == [16, 48, 16, 48, 4]
    assert sizes_of(layers[:2], page_size=96) == [32, 96]


def test_a_kernel_block_size_that_is_asked_for_is_taken_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = [with_kernels(attention(24), 4, 16), recurrent(5, 3), attention(40)]
    assert sizes_of(layers, page_size=16, kernel_block_size=4) == [4, 4, 4]
    with pytest.raises(ValueError, match=r"layer\.0: .* blocks of 8 tokens; choose another kern"):
        sizes_of(layers, page_size=16, kernel_block_size=8)
    monkeypatch.setenv("HYBRIDRT_KERNEL_BLOCK_SIZE", "4")
    assert sizes_of(layers, page_size=16) == [4, 4, 4]
    assert sizes_of(layers, page_size=16, kernel_block_size=16) == [16, 16, 16]
    with pytest.raises(ValueError, match=r"kernel_block_size=4.*divide page_size=18"):
        sizes_of(layers, page_size=18)


def test_kernels_that_agree_on_no_size_are_refused_by_name() -> None:
    layers = [attention(24), with_kernels(attention(24), 128)]
    with pytest.raises(ValueError, match=r"layer\.1: .* blocks of 16 or 8 or 4 or 2 or 1 tokens"):
        sizes_of(layers, page_size=16)


def test_contiguous_gives_a_sequence_one_page_as_long_as_the_model() -> None:
    layers = [attention(24), recurrent(5, 3), attention(24, window=Window(40))]
    plan = plan_of(layers, 2**16, cache_policy="contiguous", max_model_len=100)
    for name in ("full", "window-40"):
        group = plan.group(name)
        assert (group.page_size, group.kernel_block_size, group.blocks_per_page) == (112, 16, 7)
        assert group.pages_for(1) == group.pages_for(100) == group.most_pages(100) == 1
    config = EngineConfig(model="m", cache_policy="contiguous", max_model_len=112)
    assert tokens_of_a_page(config) == 112


def test_fp8_scales_share_the_page_of_what_they_scale() -> None:
    spec = CacheSpec(
        "full",
        (
            State("kv", (2, 16, 24), torch.float8_e4m3fn),
            State("scale", (3,), torch.float32),
        ),
        16,
    )
    plan = plan_of([StandIn(spec), attention(24)], 2**16)
    assert [group.name for group in plan.groups] == ["full"]
    assert plan.layers[0].block_bytes == 2 * 16 * 24 + 16


def slabs_by_hand(plan: CachePlan, num_tokens: int, num_sequences: int) -> int:
    """Slabs of sequences that grow by a page at a time, counted page by page."""
    total = 0
    for group in plan.groups:
        most = group.parts
        if group.page_size is not None:
            begun = range(1, -(-num_tokens // group.page_size) + 1)
            most = max(held_by_hand(plan, group.name, n * group.page_size) for n in begun)
        total += -(-num_sequences * most // group.pages_per_slab)
    return total


def held_by_hand(plan: CachePlan, name: str, stop: int) -> int:
    """Pages with a token that one of the last page's tokens sees."""
    group = plan.group(name)
    assert group.page_size is not None
    if group.window is None:
        return stop // group.page_size
    first = group.window.first_visible(stop - group.page_size)
    return stop // group.page_size - first // group.page_size


@given(
    st.lists(window_layers, max_size=2),
    st.integers(1, 900),
    st.integers(1, 5),
    st.sampled_from([1, 4, 16]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_slabs_for_counts_the_most_that_a_growing_sequence_holds(
    windows: list[StandIn], num_tokens: int, num_sequences: int, page_size: int
) -> None:
    layers = [recurrent(5, 300), *windows, attention(16)]
    specs = [replace(layer.cache_spec) for layer in layers]
    layers = [
        StandIn(replace(spec, tokens=1) if spec.tokens else spec)  # blocks of one token
        for spec in specs
    ]
    plan = plan_of(layers, 2**26, page_size=page_size, kernel_block_size=1)
    counted = plan.slabs_for(num_tokens, num_sequences)
    by_hand = slabs_by_hand(plan, num_tokens, num_sequences)
    # A chunk that begins within a page is counted as one that begins with it.
    assert by_hand <= counted <= by_hand + len(windows) * num_sequences
