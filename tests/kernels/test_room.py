"""Memory in which weights stand one behind another."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.room import CHUNK, HUGE_PAGE, LINE, OF_ITS_OWN, Room
from hybridrt.layers.linear import Linear
from tests.harness.properties import bounded

DTYPES = [torch.bfloat16, torch.float32, torch.uint8]


@bounded(50)
@given(
    tensors=st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=1, max_size=3),
            st.sampled_from(DTYPES),
        ),
        max_size=20,
    ),
    chunk=st.sampled_from([0, 1, 1000, 2**16]),
)
def test_each_has_its_own_memory(tensors: list[tuple[list[int], torch.dtype]], chunk: int) -> None:
    room = Room(chunk)
    made = [room.new_empty(torch.empty(0, dtype=dtype), *shape) for shape, dtype in tensors]
    for number, tensor in enumerate(made):
        tensor.fill_(number)
    for number, (tensor, (shape, dtype)) in enumerate(zip(made, tensors, strict=True)):
        assert tensor.shape == tuple(shape) and tensor.dtype == dtype and tensor.is_contiguous()
        assert tensor.data_ptr() % tensor.element_size() == 0
        assert chunk == 0 or tensor.numel() == 0 or tensor.data_ptr() % LINE == 0
        assert (tensor == number).all()


def test_they_follow_each_other_from_the_beginning_of_a_huge_page() -> None:
    room = Room()
    one, other = (
        room.new_empty(torch.empty(0, dtype=torch.uint8), size) for size in (LINE - 1, LINE)
    )
    assert one.data_ptr() % HUGE_PAGE == 0
    assert other.data_ptr() == one.data_ptr() + LINE
    assert one.untyped_storage().nbytes() == CHUNK + HUGE_PAGE


def test_what_is_larger_than_a_chunk_has_one_of_its_size() -> None:
    large = Room(100).new_empty(torch.empty(0, dtype=torch.bfloat16), 3, HUGE_PAGE)
    assert large.untyped_storage().nbytes() == large.nbytes + HUGE_PAGE


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("bits", [None, 8])
def test_a_layer_is_the_same_wherever_its_weight_stands(packs: bool, bits: int | None) -> None:
    layers = [Linear(128, 96, packs=packs).bfloat16() for _ in range(2)]
    weight = torch.randn(96, 128).bfloat16()
    for layer, room in zip(layers, (OF_ITS_OWN, Room(2**20)), strict=True):
        layer.weight.data = weight.clone()
        layer.pack(bits, room)
    x = torch.randn(40, 128).bfloat16()
    assert torch.equal(layers[0](x), layers[1](x))
    if not packs:
        assert torch.equal(layers[1].weight, weight)
