"""Every function that a step or a session could go through, and how to let it fail."""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest
from torch.nn import Module

import hybridrt.cache.finder
import hybridrt.cache.page_table
import hybridrt.cache.pool
import hybridrt.cache.prefix
import hybridrt.cache.prefix_tree
import hybridrt.cache.reuse
import hybridrt.cache.sequence_entry
import hybridrt.cache.sequence_pages
import hybridrt.cache.slabs
import hybridrt.engine.batch_builder
import hybridrt.engine.engine
import hybridrt.engine.entry
import hybridrt.engine.held
import hybridrt.engine.holding_scheduler
import hybridrt.engine.logprobs
import hybridrt.engine.runner
import hybridrt.engine.sampler
import hybridrt.engine.scheduler
import hybridrt.engine.sequence
import hybridrt.engine.state_rows
import hybridrt.engine.stats
import hybridrt.engine.stats_rows

CACHE = (
    hybridrt.cache.finder,
    hybridrt.cache.page_table,
    hybridrt.cache.pool,
    hybridrt.cache.prefix,
    hybridrt.cache.prefix_tree,
    hybridrt.cache.reuse,
    hybridrt.cache.sequence_entry,
    hybridrt.cache.sequence_pages,
    hybridrt.cache.slabs,
)
ENGINE = (
    hybridrt.engine.batch_builder,
    hybridrt.engine.engine,
    hybridrt.engine.entry,
    hybridrt.engine.held,
    hybridrt.engine.holding_scheduler,
    hybridrt.engine.logprobs,
    hybridrt.engine.runner,
    hybridrt.engine.sampler,
    hybridrt.engine.scheduler,
    hybridrt.engine.sequence,
    hybridrt.engine.state_rows,
    hybridrt.engine.stats,
    hybridrt.engine.stats_rows,
)


class Unplugged(Exception):  # noqa: N818 (it is no error of the code)
    """What no code expects."""


@dataclass
class Fault:
    """Raises at some calls of a function while it `is_armed`, before it or when it is done."""

    before: Collection[int] = ()
    behind: Collection[int] = ()
    is_armed: bool = False
    num_calls: int = 0
    num_raised: int = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def failing(*args: Any, **kwargs: Any) -> Any:
            if not self.is_armed:
                return call(*args, **kwargs)
            self.num_calls += 1
            number = self.num_calls
            self.fail_if(number in self.before)
            result = call(*args, **kwargs)
            self.fail_if(number in self.behind)
            return result

        return failing

    def fail_if(self, due: bool) -> None:
        if due:
            self.num_raised += 1
            raise Unplugged


@dataclass(frozen=True)
class Point:
    """A function of a module, or with `owner` a method or property of a class in it."""

    module: ModuleType
    owner: type | None
    name: str

    def __str__(self) -> str:
        of = self.owner.__name__ if self.owner else self.module.__name__.rpartition(".")[2]
        return f"{of}.{self.name}"

    def patch(self, patch: pytest.MonkeyPatch, fault: Fault) -> None:
        """Lets the function fail wherever it is known."""
        if self.owner is None:
            original = getattr(self.module, self.name)
            wrapped = fault.wrap(original)
            for module in [*sys.modules.values()]:
                known = getattr(module, "__dict__", {}) if module else {}
                if known.get(self.name) is original:
                    patch.setattr(module, self.name, wrapped)
            return
        original = vars(self.owner)[self.name]
        if isinstance(original, property):
            assert original.fget is not None
            patch.setattr(self.owner, self.name, property(fault.wrap(original.fget)))
        else:
            patch.setattr(self.owner, self.name, fault.wrap(original))


def points(modules: Iterable[ModuleType]) -> Iterator[Point]:
    """All of them, private ones too, but for those whose names Python gives a meaning."""
    for module in modules:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, FunctionType):
                yield Point(module, None, name)
            elif inspect.isclass(value):
                yield from _of_class(module, value)


def _of_class(module: ModuleType, owner: type) -> Iterator[Point]:
    for name, value in vars(owner).items():
        function = value.fget if isinstance(value, property) else value
        is_own = isinstance(function, FunctionType) and function.__module__ == module.__name__
        if is_own and not name.startswith("__"):
            yield Point(module, owner, name)


def arm(faults: Iterable[Fault], is_armed: bool) -> None:
    for fault in faults:
        fault.is_armed = is_armed


def called(points: Iterable[Point], run: Callable[[Sequence[Fault]], object]) -> frozenset[Point]:
    """Those that a run comes to while it has armed what it is given; with a fault at any other
    nothing would fail."""
    counts = {point: Fault() for point in points}
    with pytest.MonkeyPatch.context() as patch:
        for point, count in counts.items():
            point.patch(patch, count)
        run([*counts.values()])
    found = frozenset(point for point, count in counts.items() if count.num_calls)
    assert found, "the run has armed nothing"
    return found


def forwards(model: Module) -> Iterator[Point]:
    """The forwards of a model and of all its layers."""
    owners = dict.fromkeys(
        next(cls for cls in type(part).__mro__ if "forward" in vars(cls))
        for part in model.modules()
    )
    for owner in owners:
        if owner.__module__.startswith("hybridrt"):
            yield Point(sys.modules[owner.__module__], owner, "forward")
