"""The slab: little padding, uniform strides, on real sizes and odd ones."""

import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.cuts import Cut, Need, find_cuts, splittable, whole
from hybridrt.cache.spec import ALIGNMENT

GIB = 2**30

# Bytes of 16 tokens in each group of layers that keep tokens, then how many layers have
# states of how many bytes; all in bfloat16 with float32 SSM states. And the most padding
# in percent in 8 GiB.
GEOMETRIES = {
    "Kimi-Linear-48B": ((129_024,), (20, 2_170_880), 0.5),
    "Nemotron-3-Nano-30B": ((98_304,), (23, 2_134_016), 0.5),
    "Nemotron-H-8B": ((262_144,), (24, 2_158_592), 0.5),
    "Falcon-H1-7B": ((720_896,), (44, 1_594_368), 0.5),
    "Bamba-9B": ((196_608,), (29, 2_147_840), 0.5),
    "Granite-4-H-Small": ((262_144,), (36, 2_147_840), 0.5),
    "Jamba-Mini": ((262_144,), (28, 573_440), 0.5),
    "Qwen3-Next-80B": ((393_216,), (36, 1_097_728), 0.5),
    "Qwen3-Next-80B, float32 conv": ((393_216,), (36, 2_146_304), 0.5),
    "Zamba2-7B": ((5_963_776,), (81, 962_048), 0.6),
    "Gemma-3-27B": ((1_310_720, 6_815_744), (0, 0), 0.5),
    "DeepSeek-V3": ((1_124_352,), (0, 0), 0.0),
    "Llama-3.1-8B": ((2_097_152,), (0, 0), 0.0),
    "full, window and states": ((30_720, 107_520), (30, 334_000), 0.5),
    "full, window, chunks and states": ((524_288, 1_441_792, 327_680), (24, 2_158_592), 1.0),
    "two windows, chunks and states": ((184_320, 983_040, 393_216), (20, 2_170_880), 1.0),
    # Slabs for less padding would be so large that half full ones cost more.
    "full, three windows and states": ((524_288, 1_441_792, 720_896, 55_296), (24, 1_097_728), 2.0),
}


def needs_of(name: str, r: int = 1) -> list[Need]:
    pages, (num_layers, layer_bytes), _ = GEOMETRIES[name]
    states = [splittable([layer_bytes] * num_layers)] if num_layers else []
    return [whole(num_bytes, r) for num_bytes in pages] + states


def check(needs: Sequence[Need], memory: int, cut: Cut) -> float:
    """That every group can live in its pages. Returns the largest padding in percent."""
    assert cut.num_slabs == memory // cut.slab_bytes
    padding: list[float] = []
    for need, count, split in zip(needs, cut.counts, cut.splits, strict=True):
        assert split in need.splits
        assert cut.slab_bytes % (ALIGNMENT * count * need.blocks) == 0
        stride = cut.slab_bytes // count
        assert split.page_bytes <= stride, "a page does not fit its stride"
        padding.append(1 - need.num_bytes / (split.parts * stride))
    assert cut.padding == pytest.approx(max(padding))
    return 100 * max(padding)


@pytest.mark.parametrize("r", [1, 4])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_real_geometries_waste_half_a_percent_in_32_slabs_or_more(name: str, r: int) -> None:
    needs = needs_of(name, r)
    cut = find_cuts(needs, 8 * GIB)
    assert check(needs, 8 * GIB, cut) <= GEOMETRIES[name][2] + 0.005
    assert cut.num_slabs >= 32
    assert find_cuts(needs_of(name, r), 8 * GIB) == cut


@pytest.mark.parametrize("memory", [GIB // 4, GIB])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_small_pool_has_32_slabs_where_splits_allow_it(name: str, memory: int) -> None:
    needs = needs_of(name)
    cut = find_cuts(needs, memory)
    check(needs, memory, cut)
    least_page = max(min(split.page_bytes for split in need.splits) for need in needs)
    assert cut.num_slabs >= min(32, memory // (2 * least_page))


def test_states_that_are_not_split_are_cut_as_closely() -> None:
    needs = [whole(30_720, 1), whole(107_520, 1), whole(10_020_000, 1)]
    assert check(needs, 8 * GIB, find_cuts(needs, 8 * GIB)) <= 0.5


def test_a_state_too_large_for_a_slab_is_split_by_layers() -> None:
    layers = [2_170_880] * 20
    tokens = whole(129_024, 1)
    (_, split) = find_cuts([tokens, splittable(layers)], 64 * 2**20).splits
    assert split.parts > 1
    assert find_cuts([tokens, whole(sum(layers), 1)], 1 * GIB).num_slabs < 32
    assert find_cuts([tokens, splittable(layers)], 1 * GIB).num_slabs >= 32


layer_bytes = st.lists(st.integers(1, 60).map(lambda n: ALIGNMENT * n), min_size=1, max_size=9)


@given(layer_bytes)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_split_has_every_layer_once_and_the_smallest_largest_part(sizes: list[int]) -> None:
    need = splittable(sizes)
    assert need.num_bytes == sum(sizes) and need.blocks == 1
    assert min(split.parts for split in need.splits) == 1
    assert min(split.page_bytes for split in need.splits) == max(sizes)
    for split in need.splits:
        bounds = [*split.starts, len(sizes)]
        assert bounds[0] == 0 and all(a < b for a, b in itertools.pairwise(bounds))
        assert split.page_bytes == largest_part(sizes, split.starts)
        others = itertools.combinations(range(1, len(sizes)), split.parts - 1)
        assert split.page_bytes == min(largest_part(sizes, (0, *other)) for other in others)


def largest_part(sizes: Sequence[int], starts: Sequence[int]) -> int:
    return max(sum(sizes[a:b]) for a, b in itertools.pairwise([*starts, len(sizes)]))


tokens = st.builds(
    lambda units, r: whole(ALIGNMENT * r * units, r),
    st.integers(1, 20_000),
    st.sampled_from([1, 2, 4, 16, 33]),
)
groups = st.builds(  # all states are in one group
    lambda tokens, states: tokens + states,
    st.lists(tokens, min_size=1, max_size=3),
    st.lists(layer_bytes.map(splittable), max_size=1),
)


@given(groups, st.integers(0, 24))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_group_has_one_aligned_stride_that_holds_its_page(
    needs: list[Need], spare: int
) -> None:
    memory = len(needs) * max(need.num_bytes for need in needs) * 2**spare
    try:
        cut = find_cuts(needs, memory)
    except ValueError:
        return  # that it is right to refuse is the next test's
    check(needs, memory, cut)
    assert find_cuts(needs, memory) == cut
    slabs = sum(
        -(-split.parts // count) for split, count in zip(cut.splits, cut.counts, strict=True)
    )
    assert slabs <= cut.num_slabs, "a sequence doesn't fit"


@given(groups)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_too_little_memory_is_refused_with_the_bytes_that_are_enough(needs: list[Need]) -> None:
    with pytest.raises(ValueError, match="cache_memory=15 bytes is not enough") as refusal:
        find_cuts(needs, 15)
    enough = int(re.findall(r"take (\d+) bytes", str(refusal.value))[0])
    cut = find_cuts(needs, enough)
    assert cut.num_slabs * cut.slab_bytes <= enough
    with pytest.raises(ValueError, match=f"cache_memory={enough - 1} bytes"):
        find_cuts(needs, enough - 1)


def test_a_small_pool_is_not_spent_on_slabs_that_leave_groups_waiting() -> None:
    needs = [whole(6_400, 1), whole(100_000, 1)]
    for memory in (200_000, 10**6, 10**7):
        cut = find_cuts(needs, memory)
        assert cut.num_slabs >= min(32, memory // 120_000)


@pytest.mark.parametrize("memory", [2**24, 2**62])
def test_a_common_multiple_beyond_all_numbers_is_no_slab(memory: int) -> None:
    needs = [whole(16, 1), whole(16, 1), whole(33 * 662 * 16, 33), whole(16, 1)]
    cut = find_cuts(needs, memory)
    check(needs, memory, cut)
    assert cut.slab_bytes < 2**40


def test_no_cached_layer_needs_no_memory() -> None:
    assert find_cuts([], 0) == Cut(0, 0, (), (), 0.0)
