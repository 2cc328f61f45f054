"""The parts that a model is made of, with their parameters and what they cache."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybridrt.cache.explain import MOST_ROWS, number_in, number_ranges, simple_table
from hybridrt.cache.plan import CachePlan

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor, nn

_LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A layer, or what stands before or behind the layers. A shared parameter counts once."""

    name: str
    is_layer: bool
    modules: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    cache_bytes_per_token: int
    cache_bytes_per_sequence: int

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {key: value for key, value in asdict(self).items() if key != "is_layer"}


def model_parts(model: "nn.Module", plan: CachePlan) -> list[ModelPart]:
    """The model, on whichever device, cut into its parts in order."""
    seen: set[int] = set()
    parts: list[ModelPart] = []
    for name, module, is_layer in _units(model):
        own = [p for p in module.parameters() if id(p) not in seen]
        seen.update(map(id, own))
        cached = [layer for layer in plan.layers if f"{layer.name}.".startswith(f"{name}.")]
        parts.append(
            ModelPart(
                name=name,
                is_layer=is_layer,
                modules=_layer_modules(module) if is_layer else (type(module).__name__,),
                parameters=sum(p.numel() for p in own),
                parameter_bytes=_bytes(own),
                cache_bytes_per_token=sum(layer.bytes_per_token for layer in cached),
                cache_bytes_per_sequence=sum(layer.bytes_per_sequence for layer in cached),
            )
        )
    return parts


def parts_table(parts: Sequence[ModelPart]) -> "Table":
    """One row per part; of very many, one row for layers that are alike."""
    columns = ("layer", "made of", "parameters", "bytes", "cache bytes")
    table = simple_table("Layers", *columns, right=columns[2:])
    for same in _alike(parts):
        part = same[0]
        numbers = number_ranges([number_in(one.name) for one in same])
        table.add_row(
            f"{numbers} ({len(same)})" if len(same) > 1 else part.name.removeprefix("model."),
            " + ".join(part.modules),
            f"{part.parameters:,}",
            f"{part.parameter_bytes:,}",
            _cache_text(part),
        )
    return table


def _units(model: "nn.Module") -> "Iterator[tuple[str, nn.Module, bool]]":
    """Name, module, and whether it is a layer."""
    for name, child in model.named_children():
        inner = list(child.named_children())
        if not inner:
            yield name, child, False
        for inner_name, module in inner:
            path = f"{name}.{inner_name}"
            if inner_name != _LAYERS:
                yield path, module, False
                continue
            for number, layer in module.named_children():
                yield f"{path}.{number}", layer, True


def _layer_modules(layer: "nn.Module") -> tuple[str, ...]:
    """What a layer computes, its norms left out."""
    names = [getattr(child, "mixer", type(child).__name__) for child in layer.children()]
    return tuple(name for name in names if "Norm" not in name)


def _bytes(parameters: "Iterable[Tensor]") -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _alike(parts: Sequence[ModelPart]) -> list[list[ModelPart]]:
    if len(parts) <= MOST_ROWS:
        return [[part] for part in parts]
    classes: dict[Any, list[ModelPart]] = {}
    for part in parts:
        sizes = (part.parameters, part.cache_bytes_per_token, part.cache_bytes_per_sequence)
        key = (part.modules, *sizes) if part.is_layer else part.name
        classes.setdefault(key, []).append(part)
    return list(classes.values())


def _cache_text(part: ModelPart) -> str:
    texts = []
    if part.cache_bytes_per_token:
        texts.append(f"{part.cache_bytes_per_token:,} a token")
    if part.cache_bytes_per_sequence:
        texts.append(f"{part.cache_bytes_per_sequence:,} a sequence")
    return "\n".join(texts) or "-"
