"""CacheSpec: bytes and views come from one place and can't disagree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import ALIGNMENT, CacheSpec, State, Window, align
from tests.cache.stand_ins import CPU, attention, plan_of, recurrent

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)

states = st.builds(
    State,
    name=st.just("state"),
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
)
specs = st.builds(CacheSpec, kind=st.just("state"), states=st.lists(states, min_size=1).map(tuple))


def test_align_rounds_up_to_16_bytes() -> None:
    assert [align(n) for n in (0, 1, 15, 16, 17, 32)] == [0, 16, 16, 16, 32, 32]


@given(st.integers(1, 40), st.integers(0, 200), st.booleans())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_token_sees_those_of_its_window_or_of_its_chunk(
    size: int, position: int, chunked: bool
) -> None:
    window = Window(size, chunked)
    seen = [
        token
        for token in range(position + 1)
        if (token // size == position // size if chunked else position - token < size)
    ]
    assert window.first_visible(position) == seen[0] and len(seen) <= size
    assert window.first_visible(position) <= window.first_visible(position + 1)
    later = (p for p in range(position, position + 2 * size) if window.first_visible(p) > position)
    assert window.unseen_from(position) == next(later)


@given(specs)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_block_bytes_are_what_the_views_take_each_aligned(spec: CacheSpec) -> None:
    pages = torch.zeros(3, spec.block_bytes, dtype=torch.uint8)
    end = 0
    for state, view in zip(spec.states, spec.unpack(pages), strict=True):
        start = view[0].data_ptr() - pages.data_ptr()
        assert start == end and start % ALIGNMENT == 0
        assert view.shape == (3, *state.shape) and view.dtype == state.dtype
        end = start + align(state.num_bytes)
    assert end == spec.block_bytes


@given(specs, st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_writing_one_state_of_one_block_changes_its_bytes_alone(
    spec: CacheSpec, data: st.DataObject
) -> None:
    pages = torch.full((4, spec.block_bytes), 0xFF, dtype=torch.uint8)
    block = data.draw(st.integers(0, 3))
    index = data.draw(st.integers(0, len(spec.states) - 1))
    spec.unpack(pages)[index][block] = 0
    offset = sum(align(state.num_bytes) for state in spec.states[:index])
    expected = torch.full_like(pages, 0xFF)
    expected[block, offset : offset + spec.states[index].num_bytes] = 0
    assert pages.equal(expected)


def test_views_share_the_bytes_of_the_pool() -> None:
    plan = plan_of([attention(24, tokens=4), recurrent(6, 10)], 2**14, page_size=4)
    pool = Pool(plan, CPU)
    for layer, spec in zip(plan.layers, (attention(24, 4), recurrent(6, 10)), strict=True):
        pages = pool.layer_pages(layer)
        views = spec.cache_spec.unpack(pages)
        assert views[0].data_ptr() == pages.data_ptr() == pool.bytes.data_ptr() + layer.offset
        assert {v.untyped_storage().data_ptr() for v in views} == {
            pool.bytes.untyped_storage().data_ptr()
        }


def test_writing_one_block_of_one_layer_in_the_pool_changes_its_bytes_alone() -> None:
    layers = [attention(24, tokens=4), recurrent(5, 3), attention(40, tokens=4), recurrent(7, 9)]
    plan = plan_of(layers, 2**14, page_size=8, kernel_block_size=4)
    for layer, stand_in in zip(plan.layers, layers, strict=True):
        pool = Pool(plan, CPU)
        pool.bytes.fill_(0xFF)
        pages = pool.layer_pages(layer)
        block = len(pages) // 2
        for view in stand_in.cache_spec.unpack(pages):
            view[block] = 0
        stride = plan.group(layer.group).block_stride
        changed = (pool.bytes.view(-1) != 0xFF).nonzero()[:, 0]
        assert len(changed) == sum(state.num_bytes for state in stand_in.cache_spec.states)
        start = block * stride + layer.offset
        assert start <= changed.min() and changed.max() < start + layer.block_bytes


def test_bug_13_an_odd_conv_state_before_a_float32_state_is_aligned() -> None:
    conv_state = State("conv_state", (3, 5), torch.bfloat16)  # 30 bytes
    ssm_state = State("ssm_state", (7,), torch.float32)
    spec = CacheSpec("state", (conv_state, ssm_state))
    assert spec.block_bytes == 32 + 32
    conv, ssm = spec.unpack(torch.zeros(5, spec.block_bytes, dtype=torch.uint8))
    assert ssm.storage_offset() * 4 == 32 and ssm.data_ptr() % ALIGNMENT == 0
    ssm[2] = torch.arange(7.0)
    conv[2] = 1
    assert ssm[2].tolist() == [0, 1, 2, 3, 4, 5, 6] and not ssm[1].any() and not conv[3].any()


def test_a_row_of_the_wrong_size_is_refused_with_both_sizes() -> None:
    spec = recurrent(5, 3).cache_spec
    with pytest.raises(ValueError, match=r"33 bytes.*'conv_state', 'ssm_state'.*take 32"):
        spec.unpack(torch.zeros(2, 33, dtype=torch.uint8))
