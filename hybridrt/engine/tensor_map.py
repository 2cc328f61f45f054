"""What every tensor of a checkpoint becomes in a model, from headers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.fit import Fit, fit
from hybridrt.engine.formats import checkpoint_tensors
from hybridrt.engine.gguf_file import gguf_file
from hybridrt.engine.quantised import Quantisation
from hybridrt.engine.slots import PackedModule, Slot, own_tensors

Use = Literal["weight", "encoding", "ignored", "unexpected"]


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """One tensor of a file, and its place.

    Attributes:
        use: it is a weight, or part of how a weight is encoded; or it is left aside, or
            should not be there.
        becomes: the parameter that it fills, with the part of it if that isn't all; None
            if it fills none.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    use: Use
    becomes: str | None

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "file": self.file.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.num_bytes,
            "use": self.use,
            "becomes": self.becomes,
        }


@dataclass(frozen=True, slots=True)
class TensorMap:
    """All tensors of a checkpoint; `problems` are lists of what is wrong, by kind."""

    tensors: Sequence[MappedTensor]
    problems: Mapping[str, Sequence[str]]

    @property
    def fits(self) -> bool:
        """Whether the model can be loaded from them."""
        return not any(self.problems.values())


def has_weights(checkpoint: Path) -> bool:
    """Whether there is anything to map."""
    return gguf_file(checkpoint) is not None or any(checkpoint.glob("*.safetensors"))


def tensor_map(
    model: nn.Module, checkpoint: Path, quantisation: Quantisation | None = None
) -> TensorMap:
    """Every tensor of `checkpoint` and what it becomes in `model`, which may be on meta.

    Raises:
        ValueError: a file is truncated or corrupt.
    """
    stored = checkpoint_tensors(checkpoint)
    found = fit(model, stored if quantisation is None else quantisation.decoded(stored))
    names = _places(found)
    mapped = [_mapped(tensor, name, found, names) for name, tensor in found.tensors.items()]
    # Those that only decode others have no name in the model.
    seen = {(tensor.file, tensor.start) for tensor in found.tensors.values()}
    mapped += [
        _entry(tensor, "encoding", None)
        for tensor in stored.values()
        if (tensor.file, tensor.start) not in seen
    ]
    return TensorMap(mapped, found.problems())


def _mapped(tensor: StoredTensor, name: str, found: Fit, places: Mapping[int, str]) -> MappedTensor:
    if name in found.used:
        return _entry(tensor, "weight", places[id(found.used[name])])
    return _entry(tensor, "ignored" if name in found.ignored else "unexpected", None)


def _entry(tensor: StoredTensor, use: Use, becomes: str | None) -> MappedTensor:
    given = (tensor.name, tensor.file, tensor.dtype, tensor.shape, tensor.num_bytes)
    return MappedTensor(*given, use, becomes)


def _places(found: Fit) -> dict[int, str]:
    """Slot -> the parameter's name, and the part of it that the slot is."""
    paths = {module: path for path, module in found.model.named_modules()}
    layouts: dict[nn.Module, Any] = {}
    return {id(slot): _place(slot, paths[slot.module], layouts) for slot in found.slots}


def _place(slot: Slot, path: str, layouts: dict[nn.Module, Any]) -> str:
    prefix = f"{path}." if path else ""
    if slot.layout is None:
        return prefix + slot.key
    if slot.module not in layouts:
        assert isinstance(slot.module, PackedModule)
        layouts[slot.module] = slot.module.checkpoint_layouts()
    view = layouts[slot.module][slot.layout][slot.key]
    for key, own in own_tensors(slot.module):
        if view is own or view._base is own:
            return f"{prefix}{key}{part_text(view, own)}"
    return f"{prefix}{slot.key}"


def part_text(view: Tensor, whole: Tensor) -> str:
    """Which part of `whole` the view is, as it would be indexed: `[3, 0:24]`; nothing if all."""
    offset, texts = int(view.storage_offset() - whole.storage_offset()), []
    left = list(zip(view.stride(), view.shape, strict=True))
    for size, stride in zip(whole.shape, whole.stride(), strict=True):
        start, offset = divmod(offset, int(stride)) if stride else (0, offset)
        match = next((axis for axis in left if axis[0] == stride), None)
        if match is None:
            texts.append(str(start))
        else:
            left.remove(match)
            texts.append(":" if match[1] == size else f"{start}:{start + match[1]}")
    while texts and texts[-1] == ":":
        texts.pop()
    return f"[{', '.join(texts)}]" if texts else ""
