"""Kernel calls are shown to whom they belong to, while somebody looks and no longer."""

from collections.abc import Mapping
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hybridrt.introspection.observe import observed
from hybridrt.kernels import op
from hybridrt.kernels.write_pages import write_pages


def call_kernel(x: Tensor) -> None:
    write_pages(x, torch.zeros(1, 2, 4), torch.arange(2))


class Layer(nn.Module):
    """Calls a kernel, then another module that calls one, then one more itself."""

    def __init__(self, inner: nn.Module | None = None, *, fails: bool = False) -> None:
        super().__init__()
        self.inner, self.fails = inner, fails

    def forward(self, x: Tensor) -> Tensor:
        call_kernel(x)
        if self.inner is not None:
            self.inner(x)
            call_kernel(x)
        if self.fails:
            raise ArithmeticError
        return x


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


def test_a_call_belongs_to_the_innermost_layer() -> None:
    seen: list[tuple[int, int, str]] = []

    def see(index: int, call: int, kernel: str, given: Mapping[str, Any]) -> None:
        assert given["values"].shape == (2, 4) and given["cache"].dim() == 3
        seen.append((index, call, kernel))

    inner = Layer()
    outer, x = Layer(Layer(inner)), torch.ones(2, 4)
    with observed({7: outer, 3: inner}, see):
        outer(x)
        call_kernel(x)
        other = Thread(target=outer, args=(x,))
        other.start()
        other.join()
    # The one between is nobody's, so its calls are those of the layer around it.
    assert seen == [(i, n, "write_pages") for i, n in ((7, 0), (7, 1), (3, 0), (7, 2), (7, 3))]
    outer(x)
    assert len(seen) == 5 and not hooks(outer) and op._observer is None


@pytest.mark.parametrize("fails", ["layer", "observer"])
def test_nothing_stays_behind_an_error(fails: str) -> None:
    layer = Layer(fails=fails == "layer")

    def see(*_: Any) -> None:
        if fails == "observer":
            raise ArithmeticError

    with pytest.raises(ArithmeticError), observed({0: layer}, see):
        layer(torch.ones(2, 4))
    assert not hooks(layer) and op._observer is None


def test_one_looks_at_a_time() -> None:
    layer = Layer()
    with observed({0: layer}, lambda *_: None):
        with (
            pytest.raises(RuntimeError, match="observed already"),
            observed({0: layer}, lambda *_: None),
        ):
            raise AssertionError
        assert op._observer is not None and hooks(layer) == 2
    assert op._observer is None and not hooks(layer)
