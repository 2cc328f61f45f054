"""Rooms of a tape are lent to one tensor at a time, whatever is made of it."""

import gc

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor

from hybridrt.kernels.tape_memory import LINE, TapeMemory
from tests.harness.properties import bounded

DTYPES = st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.int64])
SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=3)


class MemoryMachine(RuleBasedStateMachine):
    """Tensors are painted, looked at through views, and dropped; who lives keeps its paint."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = TapeMemory()
        self.live: list[tuple[Tensor, int]] = []
        self.painted = 0

    @rule(dtype=DTYPES, shape=SHAPES)
    def lend(self, dtype: torch.dtype, shape: list[int]) -> None:
        like = torch.empty(shape, dtype=dtype)
        lent = self.memory.lend(like)
        assert (lent.shape, lent.dtype, lent.stride()) == (like.shape, like.dtype, like.stride())
        assert lent.data_ptr() % LINE == 0 and self.memory.has(lent)
        self.painted = (self.painted + 1) % 100
        self.live.append((lent.fill_(self.painted), self.painted))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def keep_only_a_view(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.live) - 1))
        tensor, paint = self.live[n]
        self.live[n] = tensor.view(-1)[-1:], paint

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        del self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @invariant()
    def nobody_writes_to_what_lives(self) -> None:
        assert all((tensor == paint).all() for tensor, paint in self.live)
        places = {tensor.untyped_storage().data_ptr() for tensor, _ in self.live}
        assert len(places) == len(self.live)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = bounded(60)


def test_a_room_is_lent_again_once_nobody_holds_what_stood_in_it() -> None:
    memory, like = TapeMemory(), torch.empty(3, 100)
    first = memory.lend(like)
    place, view = first.data_ptr(), first[1:]
    del first
    other = memory.lend(like)
    assert other.data_ptr() != place
    del view
    assert memory.lend(like).data_ptr() == place
    assert memory.num_bytes == 2 * 2048  # 1,200 bytes each, to the next power of two


def test_sizes_have_rooms_in_common() -> None:
    memory = TapeMemory()
    places = {memory.lend(torch.empty(rows, 64)).data_ptr() for rows in range(33, 65)}
    assert len(places) == 1


def test_what_is_given_back_is_there_until_the_room_is_lent() -> None:
    memory, like = TapeMemory(), torch.empty(6, 50)
    lent = memory.lend(like).copy_(torch.arange(300.0).view(6, 50))
    kept = memory.given_back(lent[2:4])
    del lent
    assert torch.equal(kept, torch.arange(100.0, 200.0).view(2, 50))
    other = memory.lend(like).zero_()
    assert not kept.any() and memory.has(other)
    columns = memory.lend(like).copy_(torch.arange(300.0).view(6, 50))[1:, ::7].T
    assert torch.equal(memory.given_back(columns), columns)
    elsewhere = torch.ones(3)
    assert memory.given_back(elsewhere) is elsewhere and not memory.has(elsewhere)


def test_tensors_outlive_the_memory() -> None:
    memory = TapeMemory()
    tensor = memory.lend(torch.empty(1000)).fill_(7)
    del memory
    gc.collect()
    others = [torch.zeros(1000) for _ in range(10)]
    assert (tensor == 7).all() and len(others) == 10
