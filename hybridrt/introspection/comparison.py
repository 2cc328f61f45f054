"""Comparison: what `compare` found, as rows, a table, a sentence and plain data."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hybridrt.cache.explain import simple_table
from hybridrt.introspection.differences import Difference

What = Literal["tokens", "weight", "input", "output", "cache"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One tensor that both sides have.

    Attributes:
        layer: the layer's index in the model; None: before or behind all layers.
        mixer: what the layer mixes tokens with; empty outside of layers.
        name: of the module, parameter or cached tensor, within the layer.
        what: whether it is a weight, what goes into a module or comes out, or cached.
        difference: how far the two are apart.
        decides: can say alone that its layer is wrong. Others may be computed in another form,
            and say where in a wrong layer the error begins.
        inside: the module that the tensor belongs to, within the layer.
        excess: whether it leaves tolerance.
    """

    layer: int | None
    mixer: str
    name: str
    what: What
    difference: Difference
    decides: bool
    excess: bool
    inside: str = ""

    @property
    def tensor(self) -> str:
        """What it is, in words."""
        return f"{self.what} of {self.name}" if self.what in ("input", "output") else self.name

    @property
    def error(self) -> float:
        """The largest difference as a share of the scale."""
        return self.difference.error

    @property
    def token(self) -> int | None:
        """The first token that leaves tolerance."""
        return self.difference.token

    def data(self) -> dict[str, Any]:
        """As plain data; null stands for an infinite error."""
        largest, error = self.difference.largest, self.error
        return {
            "layer": self.layer,
            "mixer": self.mixer,
            "name": self.name,
            "what": self.what,
            "error": error if math.isfinite(error) else None,
            "largest": largest if math.isfinite(largest) else None,
            "scale": self.difference.scale,
            "token": self.token,
            "head": self.difference.head,
            "decides": self.decides,
            "within_tolerance": not self.excess,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two sides, tensor by tensor, in the order in which they are computed.

    Attributes:
        rows: every tensor that was compared.
        wrong: those that are out of tolerance, and not only computed in another form.
        tolerance: the largest error that is right, as a share of a tensor's scale.
        notes: what could not be compared, and why.
        num_tokens: those of the one side and of the other.
    """

    rows: Sequence[Row]
    wrong: Sequence[Row]
    tolerance: float
    notes: Sequence[str] = ()
    num_tokens: tuple[int, int] | None = None

    @property
    def first(self) -> Row | None:
        """The first tensor that is wrong, of the first layer that is; None: nothing is wrong."""
        return self.wrong[0] if self.wrong else None

    @property
    def token(self) -> int | None:
        """From which token on the first wrong layer is wrong; None: nothing is, or not known.

        A state is of all tokens: then it is the first token of what the layer gives.
        """
        of_layer = [row for row in self.wrong if self.first and row.layer == self.first.layer]
        return next((row.token for row in of_layer if row.token is not None), None)

    @property
    def equal(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    @property
    def summary(self) -> str:
        """What was found, in one sentence."""
        first = self.first
        if first is None:
            return f"All agree to {self._largest(self.rows):.1g}, within {self.tolerance:g}."
        if first.what == "tokens":
            if self.num_tokens is not None and first.token == min(self.num_tokens):
                one, other = self.num_tokens
                same = f"; the first {first.token} are the same" if first.token else ""
                return f"One has {one} tokens, the other {other}{same}."
            return f"The sequences differ from token {self.token} on, and so does what they hold."
        before = self.rows[: self.rows.index(first)]
        leaves = f"to leave {self.tolerance:g}"
        return f"{_place(first)} {leaves}: {_error(first, self.token)}; {self._agree(before)}"

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "equal": self.equal,
            "tolerance": self.tolerance,
            "summary": self.summary,
            "first": None if self.first is None else self.first.data() | {"token": self.token},
            "notes": list(self.notes),
            "rows": [row.data() for row in self.rows],
        }

    def _agree(self, rows: Sequence[Row]) -> str:
        deciding = [row for row in rows if row.decides]
        if not deciding:
            return "it is the first thing that is computed."
        return f"everything before it agrees to {self._largest(deciding):.1g}."

    @staticmethod
    def _largest(rows: Sequence[Row]) -> float:
        """Of what decides and is in the same form."""
        return max((row.error for row in rows if row.decides and not row.excess), default=0.0)

    def shown(self) -> list[Row]:
        """The rows worth a line: what decides, and all of the first layer that is wrong."""
        first = self.first
        wrong = None if first is None else first.layer
        return [
            row
            for row in self.rows
            if (row.decides and row.what != "weight")
            or row is first
            or (wrong is not None and row.layer == wrong and row.what != "weight")
        ]

    def __rich__(self) -> Group:
        table = simple_table(
            "Comparison",
            *("", "layer", "mixer", "tensor", "error", "largest", "scale", "token", "head"),
            right=("layer", "error", "largest", "scale", "token", "head"),
        )
        for row in self.shown():
            self._add(table, row)
        lines = [Text(self.summary), *(Text(note, style="dim") for note in self.notes)]
        return Group(table, *lines)

    def _add(self, table: Table, row: Row) -> None:
        apart = row.difference
        mark = "wrong" if row in self.wrong else "other form" if row.excess else ""
        mark = "first" if row is self.first else mark
        style = {"first": "bold red", "wrong": "red", "other form": "dim"}.get(mark)
        table.add_row(
            mark,
            "" if row.layer is None else str(row.layer),
            row.mixer,
            row.tensor,
            f"{row.error:.1e}",
            f"{apart.largest:.2g}",
            f"{apart.scale:.2g}",
            "" if apart.token is None else str(apart.token),
            "" if apart.head is None or not row.excess else str(apart.head),
            style=style,
        )

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=100, color_system=None, force_terminal=False).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


def _place(row: Row) -> str:
    if row.layer is None:
        return f"{row.name} is the first"
    mixer = f" ({row.mixer})" if row.mixer else ""
    return f"layer {row.layer}{mixer} is the first"


def _error(row: Row, token: int | None) -> str:
    apart = row.difference
    since = "" if token is None else f", from token {token} on"
    if math.isinf(apart.largest):
        return f"{row.tensor}{since}, which has other shapes or numbers that aren't any"
    return f"{row.tensor}{since}, {apart.largest:.2g} where the scale is {apart.scale:.2g}"
