"""The slab: little padding, uniform strides, on real sizes and odd ones."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.cuts import Cut, find_cuts, whole
from hybridrt.cache.spec import ALIGNMENT

GIB = 2**30

# Bytes that pages of 16 tokens and the states of one sequence take, in bfloat16 with
# float32 SSM states, and the most padding in percent.
GEOMETRIES = {
    "Kimi-Linear-48B": ((43_417_600, 129_024), 0.5),
    "Nemotron-3-Nano-30B": ((49_082_368, 98_304), 0.5),
    "Nemotron-H-8B": ((51_806_208, 262_144), 0.5),
    "Falcon-H1-7B": ((720_896, 70_152_192), 0.5),
    "Bamba-9B": ((62_287_360, 196_608), 0.5),
    "Granite-4-H-Small": ((77_322_240, 262_144), 0.5),
    "Jamba-Mini": ((16_056_320, 262_144), 0.5),
    "Qwen3-Next-80B": ((39_518_208, 393_216), 0.5),
    "Qwen3-Next-80B, float32 conv": ((77_266_944, 393_216), 0.5),
    "Zamba2-7B": ((77_925_888, 5_963_776), 0.51),
    "Gemma-3-27B": ((6_815_744, 1_310_720), 0.0),
    "DeepSeek-V3": ((1_124_352,), 0.0),
    "Llama-3.1-8B": ((2_097_152,), 0.0),
    "three kinds": ((30_000 + 720, 107_520, 10_020_000), 0.5),
}


def cut_whole(page_bytes: Sequence[int], blocks: Sequence[int], memory: int) -> Cut:
    """The cut of groups that aren't split."""
    return find_cuts([whole(size, r) for size, r in zip(page_bytes, blocks, strict=True)], memory)


def padding_percent(page_bytes: tuple[int, ...], cut: Cut) -> float:
    shares = [n * size / cut.slab_bytes for n, size in zip(cut.counts, page_bytes, strict=True)]
    assert max(shares) <= 1, "a page does not fit its stride"
    return 100 * (1 - min(shares))


@pytest.mark.parametrize("r", [1, 4])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_real_geometries_waste_half_a_percent_in_32_slabs_or_more(name: str, r: int) -> None:
    page_bytes, most = GEOMETRIES[name]
    blocks = [1 if size == max(page_bytes) and len(page_bytes) > 1 else r for size in page_bytes]
    cut = cut_whole(page_bytes, blocks, 8 * GIB)
    assert padding_percent(page_bytes, cut) <= most + 0.005
    assert cut.num_slabs >= 32
    assert 8 * GIB - cut.slab_bytes < cut.num_slabs * cut.slab_bytes <= 8 * GIB
    for count, blocks_per_page in zip(cut.counts, blocks, strict=True):
        assert cut.slab_bytes % (ALIGNMENT * count * blocks_per_page) == 0


groups = st.lists(
    st.tuples(st.integers(1, 20_000), st.sampled_from([1, 2, 4, 16, 33])), min_size=1, max_size=3
)


@given(groups, st.integers(0, 24))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_group_has_one_aligned_stride_that_holds_its_page(
    drawn: list[tuple[int, int]], spare: int
) -> None:
    page_bytes = tuple(ALIGNMENT * r * units for units, r in drawn)
    blocks = [r for _, r in drawn]
    memory = len(drawn) * max(page_bytes) * 2**spare
    try:
        cut = cut_whole(page_bytes, blocks, memory)
    except ValueError:
        return  # that it is right to refuse is the next test's
    padding_percent(page_bytes, cut)
    assert len(drawn) <= cut.num_slabs == memory // cut.slab_bytes
    for count, r in zip(cut.counts, blocks, strict=True):
        assert cut.slab_bytes % (ALIGNMENT * count * r) == 0
    assert cut_whole(page_bytes, blocks, memory) == cut


@given(groups)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_too_little_memory_is_refused_with_the_bytes_that_are_enough(
    drawn: list[tuple[int, int]],
) -> None:
    page_bytes = [ALIGNMENT * r * units for units, r in drawn]
    blocks = [r for _, r in drawn]
    with pytest.raises(ValueError, match="cache_memory=15 bytes is not enough") as refusal:
        cut_whole(page_bytes, blocks, 15)
    enough = int(re.findall(r"take (\d+) bytes", str(refusal.value))[0])
    cut = cut_whole(page_bytes, blocks, enough)
    assert cut.num_slabs * cut.slab_bytes <= enough
    with pytest.raises(ValueError, match=f"cache_memory={enough - 1} bytes"):
        cut_whole(page_bytes, blocks, enough - 1)


def test_a_small_pool_is_not_spent_on_slabs_that_leave_groups_waiting() -> None:
    page_bytes = (6_400, 100_000)
    for memory in (200_000, 10**6, 10**7):
        cut = cut_whole(page_bytes, (1, 1), memory)
        assert cut.num_slabs >= min(32, memory // 120_000)


def test_no_cached_layer_needs_no_memory() -> None:
    assert find_cuts([], 0) == Cut(0, 0, (), (), 0.0)
