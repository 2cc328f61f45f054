"""What the cache holds for requests that run: pages and bytes, layer by layer."""

from collections.abc import Iterable
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
    from hybridrt.request import RequestOutput


@dataclass(frozen=True, slots=True)
class LayerUse:
    """A layer's part of some pages of its group."""

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

    def used_by(self, num_tokens: int) -> int:
        """The bytes of those that one sequence of so many tokens has filled."""
        return self.layer.bytes_per_sequence + num_tokens * self.layer.bytes_per_token

    def data(self) -> dict[str, Any]:
        """As plain data, each tensor with its shape over all these pages."""
        data = layer_data(self.layer)
        for state in data["states"]:
            state["shape"].insert(0, self.num_blocks)
        return data | {"pages": self.pages, "bytes": self.num_bytes}


class CacheWatch:
    """Steps an LLM, and keeps the most pages that each group had in use in one step."""

    def __init__(self, llm: "LLM") -> None:
        self._llm = llm
        self._peak = dict.fromkeys((group.name for group in llm.plan.groups), 0)

    def step(self) -> "list[RequestOutput]":
        """As `LLM.step`."""
        outputs = self._llm.step()
        # Who finished has given its pages back already. The last token was never written.
        finished = [
            len(output.prompt_token_ids) + len(completion.token_ids) - 1
            for output in outputs
            if output.finished
            for completion in output.outputs
        ]
        for index, group in enumerate(self._llm.plan.groups):
            live = self._llm.engine.pool.allocator.num_live_pages(index)
            live += sum(map(group.pages_for, finished))
            self._peak[group.name] = max(self._peak[group.name], live)
        return outputs

    def in_use(self) -> list[LayerUse]:
        """Every cached layer with the pages that its group has in use now."""
        allocator = self._llm.engine.pool.allocator
        live = {g.name: allocator.num_live_pages(i) for i, g in enumerate(self._llm.plan.groups)}
        return [LayerUse(layer, live[layer.group]) for layer in self._llm.plan.layers]

    def peak(self) -> list[LayerUse]:
        """Every cached layer with the most pages of its group so far."""
        return [LayerUse(layer, self._peak[layer.group]) for layer in self._llm.plan.layers]


def held_by(llm: "LLM", request_id: str) -> list[LayerUse]:
    """Every cached layer with the pages that a running request holds."""
    tables = llm.engine.pages.tables(f"{request_id}/0")
    groups = zip(llm.plan.groups, tables, strict=True)
    pages = {group.name: len(table) for group, table in groups}
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
        numbers = (use.pages, use.num_bytes, use.used_by(num_tokens))
        table.add_row(name, mixer, group, *(f"{n:,}" for n in numbers), tensors)
    return table


def _layer_cells(layer: LayerPlan) -> tuple[str, str, str, str]:
    """Name, mixer, kind, group."""
    kind, group = (kind_text(layer.kind, text) for text in (layer.kind, layer.group))
    return names_text([layer]), layer.mixer, kind, group
