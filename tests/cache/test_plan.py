"""The plan: sizes that add up, and answers that the pool then keeps."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.spec import Window
from tests.cache.stand_ins import CPU, StandIn, attention, plan_of, recurrent

PAGES = ((1, 1), (4, 4), (16, 16), (16, 4), (66, 2))


@st.composite
def plans(draw: st.DrawFn, windows: bool = False) -> tuple[list[StandIn], CachePlan]:
    """Any few layers of odd sizes in a small pool."""
    page_size, block = draw(st.sampled_from(PAGES))
    sizes = st.integers(1, 40).map(lambda n: 2 * n)
    kinds = [sizes.map(lambda n: attention(n, tokens=block))]
    kinds += [st.tuples(st.integers(1, 99), st.integers(1, 99)).map(lambda n: recurrent(*n))]
    if windows:
        any_window = st.builds(Window, st.integers(1, 40), st.booleans())
        kinds += [st.tuples(sizes, any_window).map(lambda n: attention(n[0], block, window=n[1]))]
    layers = draw(st.lists(st.one_of(kinds), min_size=1, max_size=7))
    memory = draw(st.sampled_from([2**13, 2**15, 2**17]))
    try:
        options: dict[str, Any] = {"page_size": page_size, "kernel_block_size": block}
        return layers, plan_of(layers, memory, **options)
    except ValueError:
        assume(False)
        raise


def of_part(plan: CachePlan, group: GroupPlan, part: int) -> list[LayerPlan]:
    return [row for row in plan.layers if (row.group, row.part) == (group.name, part)]


@given(plans(windows=True))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rows_of_layers_are_disjoint_aligned_and_inside_the_pool(
    drawn: tuple[list[StandIn], CachePlan],
) -> None:
    layers, plan = drawn
    pool = Pool(plan, CPU)
    assert [row.name for row in plan.layers] == [f"layer.{i}" for i in range(len(layers))]
    for group in plan.groups:
        num_pages = plan.num_slabs * group.pages_per_slab
        parts = [of_part(plan, group, part) for part in range(group.parts)]
        assert tuple(row.name for members in parts for row in members) == group.layers
        for members in parts:
            pool.bytes.zero_()
            for row in members:
                pages = pool.layer_pages(row)
                assert pages.shape == (num_pages * group.blocks_per_page, row.block_bytes)
                assert pages.stride() == (group.block_stride, 1)
                first_byte = pages.data_ptr() - pool.bytes.data_ptr()
                assert first_byte % 16 == 0 == group.block_stride % 16
                pages += 1
            assert pool.bytes.max() == 1, "two layers share bytes"
            assert pool.bytes.sum() == num_pages * sum(row.bytes_per_page for row in members)
        taken = [sum(row.bytes_per_page for row in members) for members in parts]
        assert max(taken) == group.page_bytes <= group.page_stride
        assert sum(taken) == (group.sequence_bytes if group.kind == "state" else group.page_bytes)


@given(plans(), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_pool_admits_what_the_plan_says_and_no_more(
    drawn: tuple[list[StandIn], CachePlan], data: st.DataObject
) -> None:
    _, plan = drawn
    longest = plan.longest_sequence()
    assert longest is None or longest > 0
    pages = SequencePages(Pool(plan, CPU))
    if longest is None:
        assert pages.can_admit(10**9)
    else:
        assert pages.can_admit(longest) and not pages.can_admit(longest + 1)
    length = data.draw(st.integers(1, min(longest or 100, 100)))
    count = plan.sequences_of(length)
    assert count is not None and count > 0
    for index in range(count):
        pages.admit(f"sequence {index}", length)
    assert not pages.can_admit(length)


def grow(pages: SequencePages, name: str, page_size: int, num_tokens: int) -> int:
    """Admits a sequence and lets it grow by a page at a time. How far it came."""
    reached = 0
    while reached < num_tokens:
        stop = min(num_tokens, reached + page_size)
        if not reached:
            if not pages.can_admit(stop):
                break
            pages.admit(name, stop)
        elif pages.can_extend(name, stop):
            pages.extend(name, stop)
        else:
            break
        pages.commit(name, stop)
        reached = stop
    return reached


@given(plans(windows=True))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_sequence_that_grows_alone_reaches_the_longest(
    drawn: tuple[list[StandIn], CachePlan],
) -> None:
    _, plan = drawn
    longest, kinds = plan.longest_sequence(), {group.kind for group in plan.groups}
    page_size = max(group.page_size or 1 for group in plan.groups)
    far = 700 if longest is None else longest
    assume(far < 3000)
    pages = SequencePages(Pool(plan, CPU))
    assert grow(pages, "sequence", page_size, far) == far
    if longest is not None and "window" not in kinds:
        assert not pages.can_extend("sequence", far + 1)


@given(plans(windows=True), st.integers(1, 60))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_as_many_sequences_grow_to_a_length_as_the_plan_says(
    drawn: tuple[list[StandIn], CachePlan], length: int
) -> None:
    _, plan = drawn
    page_size = max(group.page_size or 1 for group in plan.groups)
    pages = SequencePages(Pool(plan, CPU))
    for index in range(plan.sequences_of(length) or 0):
        assert grow(pages, f"sequence {index}", page_size, length) == length


@given(plans(windows=True), st.integers(0, 200))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_bytes_for_a_length_are_those_of_every_layer(
    drawn: tuple[list[StandIn], CachePlan], num_tokens: int
) -> None:
    layers, plan = drawn
    total = 0
    for layer in layers:
        spec = layer.cache_spec
        block_bytes = sum(state.num_bytes for state in spec.states)
        window = num_tokens if spec.window is None else min(num_tokens, spec.window.size)
        total += block_bytes if spec.tokens is None else block_bytes // spec.tokens * window
    assert plan.bytes_for(num_tokens) == total


def test_bytes_of_a_plan_add_up() -> None:
    layers = [attention(24, 4), recurrent(5, 3), attention(40, 4), recurrent(8, 8)]
    plan = plan_of(layers, 2**14, page_size=8, kernel_block_size=4)
    assert plan.bytes_per_token == 24 + 40
    assert plan.bytes_per_sequence == (10 + 12) + (16 + 32)
    assert [row.bytes_per_token for row in plan.layers] == [24, 0, 40, 0]
    assert [row.bytes_per_sequence for row in plan.layers] == [0, 22, 0, 48]
    assert [row.bytes_per_page for row in plan.layers] == [192, 32, 320, 48]
    full, state = plan.group("full"), plan.group("state")
    assert (full.page_bytes, full.blocks_per_page) == (512, 2)
    assert (state.page_bytes, state.blocks_per_page) == (80, 1)
    assert plan.pool_bytes == plan.num_slabs * plan.slab_bytes <= 2**14
    for group in plan.groups:
        assert group.page_stride * group.pages_per_slab == plan.slab_bytes
        assert group.padding_percent == pytest.approx(
            100 * (1 - group.page_bytes / group.page_stride)
        )
    assert plan.padding_percent == max(group.padding_percent for group in plan.groups)


def test_pages_for_counts_begun_pages_and_one_per_state() -> None:
    plan = plan_of([attention(24, 4), recurrent(5, 3)], 2**14, page_size=8, kernel_block_size=4)
    full, state = plan.group("full"), plan.group("state")
    assert [full.pages_for(n) for n in (0, 1, 8, 9, 16, 17)] == [0, 1, 1, 2, 2, 3]
    assert [state.pages_for(n) for n in (0, 1, 8, 9)] == [0, 1, 1, 1]


def test_too_little_memory_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"cache_memory=1000 bytes .* 2 cache groups.* \d{4,}"):
        plan_of([attention(4096), recurrent(3, 5)], 1000)


def test_a_stack_without_cached_layers_takes_nothing() -> None:
    plan = plan_of([], 0)
    assert (plan.pool_bytes, plan.groups, plan.padding_percent) == (0, (), 0)
    assert plan.longest_sequence() is None and plan.sequences_of(10) is None
    assert SequencePages(Pool(plan, CPU)).can_admit(10**9)


def test_no_number_of_empty_sequences_is_the_largest_that_fits() -> None:
    plan = plan_of([attention(24), recurrent(5, 3)], 2**14)
    assert plan.sequences_of(0) is None


def test_explain_names_every_group_and_layer_and_what_fits() -> None:
    plan = plan_of([attention(24), recurrent(5, 3)], 2**16)
    text = plan.explain()
    fits = f"{plan.sequences_of(512)} of 512"
    for word in ("full", "state", "layer.0", "layer.1", "ssm_state", f"{plan.pool_bytes:,}", fits):
        assert word in text
