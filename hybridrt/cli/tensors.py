"""The tensors of a checkpoint, for people."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridrt.cache.explain import number_ranges, simple_table, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from hybridrt.engine.tensor_map import MappedTensor, TensorMap

_LAYER = re.compile(r"\b(?:layers|blk|h)\.(\d+)\.")
_EXPERT = re.compile(r"\bexperts\.(\d+)\.")
_MOST_LISTED = 20


def tensors_table(tensors: "Sequence[MappedTensor]") -> "Table":
    """One row for tensors that are alike but for the numbers of their layer and expert."""
    total = size_text(sum(tensor.num_bytes for tensor in tensors))
    table = simple_table(
        f"Tensors: {len(tensors):,}, {total}", "layers", "tensor", "stored", "becomes"
    )
    for column in table.columns[1:]:
        column.overflow = "fold"
    for rows in _alike(tensors):
        first = rows[0]
        layers = sorted({int(match[1]) for row in rows if (match := _LAYER.search(row.name))})
        own = _short(first.name)
        becomes = _becomes(first)
        table.add_row(
            number_ranges(layers),
            own,
            f"{first.dtype} {'x'.join(map(str, first.shape))}",
            "itself" if becomes == own else becomes.replace("[", " ["),
        )
    return table


def problems_text(found: "TensorMap") -> str:
    """What is missing, unused or wrong, in lines; nothing of what is right."""
    ignored = [tensor.name for tensor in found.tensors if tensor.use == "ignored"]
    lists = {**found.problems, "left aside": ignored}
    lines = ["The weights fit the model." if found.fits else "The weights do not fit the model."]
    for kind, names in lists.items():
        if names:
            more = len(names) - _MOST_LISTED
            listed = "\n".join(f"    {name}" for name in names[:_MOST_LISTED])
            cut = f"\n    ... and {more} more" if more > 0 else ""
            lines.append(f"  {kind} ({len(names)}):\n{listed}{cut}")
    return "\n".join(lines)


def _alike(tensors: "Sequence[MappedTensor]") -> "list[list[MappedTensor]]":
    found: dict[tuple[object, ...], list[MappedTensor]] = {}
    for tensor in tensors:
        key = (_short(tensor.name), tensor.dtype, tensor.shape, _becomes(tensor))
        found.setdefault(key, []).append(tensor)
    return list(found.values())


def _short(name: str) -> str:
    """Without what stands before the layer's number, and with a star for an expert's."""
    layer = _LAYER.search(name)
    own = name[layer.end() :] if layer else name
    return _EXPERT.sub("experts.*.", own)


def _becomes(tensor: "MappedTensor") -> str:
    """As short, or why it becomes nothing."""
    if tensor.becomes is None:
        return {"encoding": "(decodes others)", "ignored": "(left aside)"}.get(tensor.use, "?")
    text, expert = _short(tensor.becomes), _EXPERT.search(tensor.name)
    return text.replace(f"[{expert[1]}", "[*", 1) if expert else text
