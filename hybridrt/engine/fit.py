"""Fit: which tensor of a checkpoint fills which place of a model, and what is wrong with it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.slots import Slot, parameter_slots
from hybridrt.engine.sources import DTYPES, INTEGERS, is_loadable
from hybridrt.models.multimodal import OTHER_MODALITIES, TEXT_PREFIXES

_MOST_LISTED = 50  # names per kind in an error


@dataclass(frozen=True)
class Fit:
    """A model's places, and a checkpoint's tensors by the names that they have in the model."""

    model: nn.Module
    slots: Sequence[Slot]
    tensors: Mapping[str, StoredTensor]

    @cached_property
    def used(self) -> Mapping[str, Slot]:
        """The place of every tensor that has one, by name."""
        return {name: slot for slot in self.slots for name in slot.names if name in self.tensors}

    @cached_property
    def missing(self) -> Sequence[Slot]:
        """Places that nothing fills."""
        return [slot for slot in self.slots if self.used.keys().isdisjoint(slot.names)]

    @cached_property
    def ignored(self) -> Sequence[str]:
        """Names of tensors that have no place and may be there."""
        return [n for n in self.tensors if n not in self.used and _may_be_ignored(self.model, n)]

    @cached_property
    def unexpected(self) -> Sequence[str]:
        """Names of tensors that have no place and should not be there."""
        known = {*self.used, *self.ignored}
        return [name for name in self.tensors if name not in known]

    def problems(self) -> Mapping[str, Sequence[str]]:
        """All that is wrong, by kind, in words; empty lists where nothing is."""
        return {
            "missing": [" or ".join(slot.names) for slot in self.missing],
            "unexpected": [self._as_stored(name) for name in self.unexpected],
            "misshapen": [
                f"{name} is {list(self.tensors[name].shape)}, should be {list(slot.shape)}"
                for name, slot in self.used.items()
                if not slot.takes(self.tensors[name].shape)
            ],
            "of a dtype that can't be loaded": [
                f"{name} is {self.tensors[name].dtype}, should be one of "
                f"{', '.join(INTEGERS if slot.holds_integers else DTYPES)}"
                for name, slot in self.used.items()
                if not is_loadable(self.tensors[name], holds_integers=slot.holds_integers)
            ],
        }

    def check(self, source: Path) -> None:
        """Refuses a checkpoint that does not fill the model exactly, with all that is wrong."""
        lines = [_listed(kind, names) for kind, names in self.problems().items() if names]
        if lines:
            title = f"{source}: the weights do not fit {type(self.model).__name__}:"
            raise ValueError("\n".join([title, *lines]))

    def _as_stored(self, name: str) -> str:
        stored = self.tensors[name].name
        return name if name == stored else f"{stored} (read as {name})"


def fit(model: nn.Module, stored: Mapping[str, StoredTensor]) -> Fit:
    """How the tensors of a checkpoint fill `model`, from their headers alone.

    Raises:
        ValueError: two of them mean the same tensor of the model.
    """
    tensors = _renamed(model, stored)
    return Fit(model, parameter_slots(model, tensors), tensors)


def name_in(model: nn.Module, name: str) -> str:
    """The name in `model` of a tensor that a checkpoint has under `name`."""
    for pattern, replacement in (*TEXT_PREFIXES, *getattr(model, "checkpoint_renames", ())):
        name = re.sub(pattern, replacement, name)
    return name


def _renamed(model: nn.Module, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    renamed: dict[str, StoredTensor] = {}
    for name, tensor in ((name_in(model, name), tensor) for name, tensor in stored.items()):
        if name in renamed:
            raise ValueError(
                f"{tensor.file}: {tensor.name!r} and {renamed[name].name!r} both mean {name!r}"
            )
        renamed[name] = tensor
    return renamed


def _may_be_ignored(model: nn.Module, name: str) -> bool:
    patterns: tuple[str, ...] = getattr(model, "ignored_tensors", ())
    return any(re.fullmatch(pattern, name) for pattern in (*patterns, *OTHER_MODALITIES))


def _listed(kind: str, names: Sequence[str]) -> str:
    listed = [f"    {name}" for name in names[:_MOST_LISTED]]
    if len(names) > _MOST_LISTED:
        listed.append(f"    ... and {len(names) - _MOST_LISTED} more")
    return "\n".join([f"  {kind} ({len(names)}):", *listed])
