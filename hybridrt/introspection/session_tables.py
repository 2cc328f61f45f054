"""A session and one of its layers for people: which pages they have, and what is in them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridrt.cache.explain import bytes_text, tensor_text
from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import GroupPlan, LayerPlan
from hybridrt.show import kind_text, simple_table, size_text

if TYPE_CHECKING:
    from hybridrt.engine.engine import Engine
    from hybridrt.engine.held import Held
    from hybridrt.show import Shown


def session_tables(engine: "Engine", held: "Held") -> "Shown":
    """One row per group: the pages that a held sequence has, and for which tokens."""
    if held not in engine.held:
        return [f"{held.name} is closed"]
    columns = ("group", "layers", "pages", "shared", "bytes", "tokens")
    title = f"{held.name}: {len(held.token_ids):,} tokens, {held.num_computed:,} computed"
    table = simple_table(title, *columns, right=columns[1:5])
    for index, (group, pages) in enumerate(_tables(engine, held)):
        ids = pages.physical_ids
        shared = sum(engine.pool.allocator.references(index, page) > 1 for page in ids)
        table.add_row(
            kind_text(group.kind, group.name),
            str(len(group.layers)),
            f"{len(ids):,}",
            f"{shared:,}",
            size_text(group.used_bytes(len(ids))),
            _tokens_text(group, pages, held.num_computed),
        )
    return [table]


def layer_tables(engine: "Engine", held: "Held", plan: LayerPlan) -> "Shown":
    """What the layer is, what it takes, and the tensors in each kernel block of its pages."""
    table = simple_table(f"{plan.name} in {held.name}", "what", "value")
    rows = [("mixer", plan.mixer), ("kind", kind_text(plan.kind, plan.kind))]
    rows += [("group", plan.group), ("bytes", bytes_text(plan))]
    if plan.page_size is not None:
        rows.append(("a page holds", f"{plan.page_size:,} tokens"))
        rows.append(("a kernel block holds", f"{plan.kernel_block_size:,} tokens"))
    if held not in engine.held:
        rows.append(("pages", "none: the session is closed"))
    else:
        group, pages = next(x for x in _tables(engine, held) if x[0].name == plan.group)
        count = len(pages) // group.parts
        rows.append(("pages", f"{count:,}, {size_text(count * plan.bytes_per_page)} of this layer"))
        rows.append(("tokens", _tokens_text(group, pages, held.num_computed)))
    rows += [(name, tensor_text("", shape, dtype).strip()) for name, shape, dtype in plan.states]
    for row in rows:
        table.add_row(*row)
    return [table]


def _tables(engine: "Engine", held: "Held") -> Sequence[tuple[GroupPlan, PageTable]]:
    groups = engine.plan.groups
    if held.name not in engine.pages:
        return [(group, PageTable(group.blocks_per_page)) for group in groups]
    return list(zip(groups, engine.pages.tables(held.name), strict=True))


def _tokens_text(group: GroupPlan, pages: PageTable, num_computed: int) -> str:
    """Which tokens the pages hold, or have seen."""
    if not num_computed or not len(pages):
        return "none"
    if group.page_size is None:
        return f"the state behind {num_computed:,} tokens"
    return f"{pages.num_released * group.page_size:,} to {num_computed - 1:,}"
