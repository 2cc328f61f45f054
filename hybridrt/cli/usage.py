"""What the cache holds for requests that run: pages and bytes, layer by layer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridrt.cache.explain import (
    kind_text,
    layer_data,
    names_text,
    simple_table,
    states_text,
    tensor_text,
)
from hybridrt.cache.plan import LayerPlan

if TYPE_CHECKING:
    from rich.table import Table

    from hybridrt.llm import LLM


@dataclass(frozen=True, slots=True)
class LayerUse:
    """The pages that hold a layer's part of some sequences."""

    layer: LayerPlan
    pages: int

    @property
    def num_bytes(self) -> int:
        """Bytes that the pages have for this layer."""
        return self.pages * self.layer.bytes_per_page

    @property
    def num_blocks(self) -> int:
        """Kernel blocks in the pages."""
        size, block = self.layer.page_size, self.layer.kernel_block_size
        return self.pages if size is None or block is None else self.pages * (size // block)

    def data(self) -> dict[str, Any]:
        """As plain data, each tensor with its shape over all these pages."""
        data = layer_data(self.layer)
        for state in data["states"]:
            state["shape"].insert(0, self.num_blocks)
        return data | {"pages": self.pages, "bytes": self.num_bytes}


def in_use(llm: "LLM") -> list[LayerUse]:
    """Every cached layer with the pages that hold something of it now."""
    return _uses(llm, llm.engine.pool.allocator.num_live_pages)


def most_in_use(llm: "LLM") -> list[LayerUse]:
    """Every cached layer with the most pages that held something of it at once."""
    return _uses(llm, llm.engine.pool.allocator.most_live_pages)


def held_by(llm: "LLM", request_id: str) -> list[LayerUse]:
    """Every cached layer with the pages that a running request holds."""
    tables = llm.engine.pages.tables(f"{request_id}/0")
    return _uses(llm, lambda group: len(tables[group]))


def _uses(llm: "LLM", pages_of: Callable[[int], int]) -> list[LayerUse]:
    """Of a group's pages, each layer is in those of its part."""
    groups = enumerate(llm.plan.groups)
    pages = {group.name: pages_of(index) // group.parts for index, group in groups}
    return [LayerUse(layer, pages[layer.group]) for layer in llm.plan.layers]


def peak_table(title: str, uses: Iterable[LayerUse]) -> "Table":
    """One row per cached layer: its pages, their bytes, and the tensors in one page."""
    columns = ("layer", "mixer", "kind", "group", "pages", "bytes", "a page holds")
    table = simple_table(title, *columns, right=("pages", "bytes"))
    for use in uses:
        pages, num_bytes = f"{use.pages:,}", f"{use.num_bytes:,}"
        table.add_row(*_layer_cells(use.layer), pages, num_bytes, states_text(use.layer))
    return table


def held_table(title: str, uses: Iterable[LayerUse], num_tokens: int) -> "Table":
    """One row per cached layer: what one sequence's pages hold, as the tensors lie in them."""
    columns = ("layer", "mixer", "group", "pages", "bytes", "used", "tensors")
    table = simple_table(title, *columns, right=("pages", "bytes", "used"))
    for use in uses:
        tensors = "\n".join(
            tensor_text(name, (use.num_blocks, *shape), dtype)
            for name, shape, dtype in use.layer.states
        )
        name, mixer, _, group = _layer_cells(use.layer)
        numbers = (use.pages, use.num_bytes, use.layer.bytes_for(num_tokens))
        table.add_row(name, mixer, group, *(f"{n:,}" for n in numbers), tensors)
    return table


def _layer_cells(layer: LayerPlan) -> tuple[str, str, str, str]:
    """Name, mixer, kind, group."""
    kind, group = (kind_text(layer.kind, text) for text in (layer.kind, layer.group))
    return names_text([layer]), layer.mixer, kind, group
