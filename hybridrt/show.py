"""How things show themselves: tables in a terminal, as plain text, and in a notebook.

What is shown is a sequence of rich tables and of texts. Nothing here knows what they are about.
"""

import html
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Shown = Sequence["Table | str"]

TEXT_WIDTH = 100
_TABLE_STYLE = "border-collapse:collapse;margin:0.5em 0;color:inherit;background:none"
_CAPTION_STYLE = "text-align:left;font-weight:bold;color:inherit"
_CELL_STYLE = "padding:0.15em 0.8em 0.15em 0;vertical-align:top;font-weight:normal"


class ShowsItself(ABC):
    """Something that prints as tables, and is tables in a notebook."""

    __slots__ = ()

    @abstractmethod
    def shown(self) -> Shown:
        """The tables and texts, in order. Texts are plain, cells may have rich's markup."""

    def __rich__(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(part) if isinstance(part, str) else part for part in self.shown()))

    def __str__(self) -> str:
        return as_text(self.shown())

    def _repr_html_(self) -> str:
        return as_html(self.shown())


def as_text(parts: Shown, width: int = TEXT_WIDTH) -> str:
    """The parts as plain text of at most so many columns, with a line between them."""
    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False)
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else part)
        console.print()
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


def as_html(parts: Shown) -> str:
    """The parts as HTML that stands anywhere: no script, no colour of its own, all escaped.

    A table has its title as caption, and its first column names its rows.
    """
    return "\n".join(_paragraph(part) if isinstance(part, str) else _table(part) for part in parts)


def _paragraph(text: str) -> str:
    return f'<p style="color:inherit">{_escaped(text)}</p>'


def _table(table: "Table") -> str:
    columns = table.columns
    heads = "".join(
        f'<th scope="col" style="{_style(column.justify)};border-bottom:1px solid currentColor">'
        f"{_cell(column.header)}</th>"
        for column in columns
    )
    rows = "\n".join(
        "<tr>" + "".join(_data(i, columns[i].justify, cell) for i, cell in enumerate(row)) + "</tr>"
        for row in zip(*(column.cells for column in columns), strict=True)
    )
    caption = ""
    if table.title is not None:
        caption = f'<caption style="{_CAPTION_STYLE}">{_cell(table.title)}</caption>\n'
    return (
        f'<table style="{_TABLE_STYLE}">\n{caption}<thead>\n<tr>{heads}</tr>\n</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>"
    )


def _data(index: int, justify: str, cell: Any) -> str:
    if not index:
        return f'<th scope="row" style="{_style(justify)}">{_cell(cell)}</th>'
    return f'<td style="{_style(justify)}">{_cell(cell)}</td>'


def _style(justify: str) -> str:
    return f"text-align:{'right' if justify == 'right' else 'left'};{_CELL_STYLE}"


def _cell(cell: Any) -> str:
    """What a cell says, without rich's markup."""
    from rich.text import Text

    text = Text.from_markup(cell) if isinstance(cell, str) else cell
    return _escaped(text.plain)


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
