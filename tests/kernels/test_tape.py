"""A tape makes the calls of a step again, or says why it can't."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.cpu.bfloat16 import singles
from hybridrt.kernels.cpu.jit import kernel
from hybridrt.kernels.tape import Tape, recorded, recording
from hybridrt.kernels.tape_memory import TapeMemory


@kernel
def _add_one(address, count):  # type: ignore[no-untyped-def]  # pragma: no cover  (compiled)
    numbers = singles(address, count)
    for i in range(count):
        numbers[i] += np.float32(1)


@kernel
def _is_small(address):  # type: ignore[no-untyped-def]  # pragma: no cover
    return singles(address, 1)[0] < 10


def record(step: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tape, Tensor]:
    with torch.inference_mode(), recorded() as tape:
        result = step(x)
    return tape, result


def _of_operations(x: Tensor) -> Tensor:
    """In place and not, with views, copies, several results, and what is made of nothing."""
    y = torch.zeros_like(x)
    y[:, 1:] = F.silu(x)[:, :-1]
    first, second = torch.cat([x, y], dim=1).to(torch.float64).chunk(2, dim=-1)
    largest, place = second.max(dim=0)
    y.flatten().mul_(2)
    return torch.stack([first.sum(0), largest, place.double(), y.mean(0).double()])


@torch.inference_mode()
def test_operations_give_of_new_numbers_what_they_would_give() -> None:
    x = torch.randn(3, 4)
    tape, result = record(_of_operations, x)
    assert tape.flaw is None and torch.equal(result, _of_operations(x))
    for _ in range(3):
        x.normal_()
        tape.replay()
        assert torch.equal(result, _of_operations(x))


@torch.inference_mode()
def test_kernels_are_called_again_where_their_tensors_were() -> None:
    """What a step makes and forgets is held."""

    def step(x: Tensor) -> Tensor:
        y = x * 2
        _add_one(y.data_ptr(), y.numel())
        return y + 0

    x = torch.randn(5)
    tape, result = record(step, x)
    x.normal_()
    others = [torch.full((5,), torch.nan) for _ in range(100)]
    tape.replay()
    assert torch.equal(result, x * 2 + 1) and len(others) == 100


@torch.inference_mode()
def test_a_tape_holds_what_another_computed() -> None:
    """As a table that a module makes once: of memory that both tapes have, it is not lent anew."""
    memory, x = TapeMemory(), torch.randn(5)
    with recorded(memory=memory):
        table = torch.empty(5)
    table.fill_(3)
    with recorded(memory=memory) as tape:
        result = torch.empty(5)
        result.copy_(x)
        _add_one(result.data_ptr(), 5)
        _add_one(table.data_ptr(), 5)
    place = table.data_ptr()
    del table
    with recorded(memory=memory):
        others = [torch.empty(5) for _ in range(10)]
    assert place not in {other.data_ptr() for other in others}
    tape.replay()
    assert torch.equal(result, x + 1)


SIZES = [(30, 1000), (40, 1024)]  # for one thread and for several


def _kernels(tape: Tape) -> set[str]:
    """The files of the kernels that a tape calls, if it calls nothing else."""
    modules = {getattr(call.function, "__module__", None) or "torch" for call in tape._calls}
    return {module.split(".")[-1] for module in modules}


@pytest.mark.parametrize("of", [torch.add, torch.mul])
@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_kernels_add_and_multiply_bfloat16_as_torch_does(
    size: tuple[int, int], of: Callable[[Tensor, Tensor], Tensor]
) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x, y = (every[torch.randint(2**16, size)] for _ in range(2))
    y[0, 0] = 1
    (tape, result), right = record(lambda x: of(x, y), x), of(x, y)
    assert _kernels(tape) == {"elementwise"}
    for _ in range(20):
        x.copy_(every[torch.randint(2**16, size)])
        x[0, 0] = torch.inf
        tape.replay()
        torch.testing.assert_close(result, of(x, y), rtol=0, atol=0, equal_nan=True)
    assert result.isinf().any() and right.isnan().any()


@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_a_kernel_widens_bfloat16(size: tuple[int, int]) -> None:
    x = torch.randn(size).bfloat16()
    tape, result = record(lambda x: x.float(), x)
    assert _kernels(tape) == {"copies"}
    x.normal_()
    tape.replay()
    assert result.dtype == torch.float32 and torch.equal(result, x.float())


DTYPES = [torch.bfloat16, torch.float32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.clone(),
        lambda x: x[:, :, 3:5].contiguous(),
        lambda x: x[1, :, ::2][:, :1].contiguous(),
        lambda x: torch.cat([x, x[:, 1:2], x[:, :0]], dim=1),
        lambda x: torch.cat([x[..., :2], x[..., 4:]], dim=-1),
        lambda x: torch.cat([x[:, 0], x[:, 2]]),
    ],
)
@torch.inference_mode()
def test_kernels_copy_and_join_rows(copy: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.randint(2, (3, 4, 7)).to(dtype)
    tape, result = record(copy, x)
    assert _kernels(tape) == {"copies"}
    x.copy_(torch.randint(2, x.shape))
    tape.replay()
    assert torch.equal(result, copy(x))


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.transpose(1, 2).contiguous(),
        lambda x: x[None].transpose(1, 2).contiguous(),
        lambda x: x.double(),
        lambda x: torch.cat([x, x.double()]),
        lambda x: torch.cat([x.transpose(1, 2), x.transpose(1, 2)]),
        lambda x: x.expand(400, 3, 4, 7).contiguous(),
    ],
)
@torch.inference_mode()
def test_other_copies_are_those_of_torch(copy: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4, 7)
    tape, result = record(copy, x)
    x.normal_()
    tape.replay()
    assert torch.equal(result, copy(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_a_kernel_takes_rows_of_a_table(dtype: torch.dtype) -> None:
    table, numbers = torch.randn(9, 5).to(dtype), torch.tensor([[3, 0], [8, 3]])
    tape, result = record(lambda numbers: F.embedding(numbers, table), numbers)
    assert _kernels(tape) == {"copies"}
    numbers.copy_(torch.tensor([[1, 7], [0, 8]]))
    tape.replay()
    assert torch.equal(result, table[numbers])
    for wrong in (9, -1):
        numbers[1, 0] = wrong
        with pytest.raises(IndexError, match="_take_rows"):
            tape.replay()


@pytest.mark.parametrize("other", [torch.ones(4).bfloat16(), torch.ones(3, 4), 2.0])
@torch.inference_mode()
def test_other_sums_are_those_of_torch(other: Tensor | float) -> None:
    x = torch.randn(3, 4).bfloat16()
    tape, result = record(lambda x: x + other, x)
    x.normal_()
    tape.replay()
    assert torch.equal(result, x + other)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x: x * x.sum().item(), "_local_scalar_dense"),
        (lambda x: x * float(x[0]), "_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"),
        (lambda x: x[x > 0], "index.Tensor"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x * sum(x.tolist()), "Tensor.tolist"),
        (lambda x: x * x.numpy().sum(), "Tensor.numpy"),
        (lambda x: x * np.asarray(x).sum(), "Tensor.__array__"),
    ],
)
def test_what_python_reads_is_a_flaw(step: Callable[[Tensor], Tensor], words: str) -> None:
    """And the step is computed all the same."""
    x = torch.tensor([1.0, -2.0, 4.0])
    tape, result = record(step, x)
    assert tape.flaw is not None and words in tape.flaw
    assert torch.equal(result, step(x))


@torch.inference_mode()
def test_some_tensors_are_for_kernels_alone() -> None:
    x = torch.zeros(2, 3)
    with recorded(for_kernels=[x]) as tape:
        _add_one(x[:1].view(-1).data_ptr(), 3)
    assert tape.flaw is None and len(tape) == 1
    with recorded(for_kernels=[x]) as tape:
        x[0] + 1  # pyright: ignore[reportUnusedExpression]
    assert tape.flaw is not None and "aten.add.Tensor reads" in tape.flaw


def test_a_kernel_that_refuses_its_numbers_is_an_error() -> None:
    x = torch.zeros(1)
    with recorded() as tape:
        assert _is_small(x.data_ptr())
    tape.replay()
    x.fill_(10)
    with pytest.raises(IndexError, match="_is_small"):
        tape.replay()


def test_nothing_is_recorded_behind_an_error() -> None:
    with pytest.raises(ZeroDivisionError), recorded():
        raise ZeroDivisionError
    assert recording.tape is None
