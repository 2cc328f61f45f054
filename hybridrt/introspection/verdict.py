"""Which of many unlike tensors are wrong, and which is the first."""

from collections.abc import Iterator, Sequence

from hybridrt.introspection.comparison import Row

LAYER, LOGITS = "layer", "logits"
"""Names of what a layer gives, and the model."""


def wrong_rows(rows: Sequence[Row]) -> list[Row]:
    """What is wrong, from the first tensor of the first wrong layer on; empty if nothing is.

    A layer is wrong if its weights are, what it gives, or what it caches. Then it is asked where
    in it the error begins, and there everything counts. But what is unlike in a module whose
    output is right is no error: it is computed in another form. Nor is a layer's output whose
    multiple goes on to give the right output of the next.
    """
    matter = [row for row in rows if _matters(row, rows)]
    harmless = {_kind(row) for row in rows if row.excess and row not in matter}
    matter = [row for row in matter if _kind(row) not in harmless]
    deciding = next((row for row in matter if row.decides), None)
    if deciding is None:
        return []
    first = next(row for row in matter if row.layer == deciding.layer)
    return matter[matter.index(first) :]


def _kind(row: Row) -> tuple[object, ...]:
    """What is in the same form in all layers that are alike."""
    return row.mixer, row.name, row.what, row.difference.form or row


def _matters(row: Row, rows: Sequence[Row]) -> bool:
    if not row.excess:
        return False
    if row.name == LAYER or row.layer is None:
        if row.difference.form is None or row.name == LOGITS:
            return True
        following = _next_output(row, rows)
        return following is None or following.excess
    if row.decides and row.difference.form is None:
        return True
    return all(_wrong(around, rows) for around in _outputs_around(row, rows))


def _wrong(output: Row, rows: Sequence[Row]) -> bool:
    return _matters(output, rows) if output.name == LAYER else output.excess


def _next_output(row: Row, rows: Sequence[Row]) -> Row | None:
    """What the next layer gives; behind the last layer the logits."""
    behind = rows[rows.index(row) + 1 :]
    return next((other for other in behind if other.name in (LAYER, LOGITS)), None)


def _outputs_around(row: Row, rows: Sequence[Row]) -> Iterator[Row]:
    """What the modules give that the row's tensor stands in, the layer among them."""
    for other in rows:
        around = other.name == LAYER or f"{row.inside}.".startswith(f"{other.name}.")
        if around and other.layer == row.layer and other.what == "output" and other is not row:
            yield other
