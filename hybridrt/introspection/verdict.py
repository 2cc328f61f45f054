"""Which of many unlike tensors is the first that is wrong."""

from collections.abc import Iterator, Sequence

from hybridrt.introspection.comparison import Row

LAYER, LOGITS = "layer", "logits"
"""Names of what a layer gives, and the model."""


def first_wrong(rows: Sequence[Row]) -> Row | None:
    """The first tensor out of tolerance of the first layer that is wrong; None: none is.

    A layer is wrong if its weights are, what it gives, or what it caches. Then it is asked where
    in it the error begins, and there everything counts. But what is unlike in a module whose
    output is right is no error: it is computed in another way. Nor is a layer's output whose
    multiple goes on to give the right output of the next.
    """
    matter = [row for row in rows if _matters(row, rows)]
    deciding = next((row for row in matter if row.decides), None)
    if deciding is None:
        return None
    return next(row for row in matter if row.layer == deciding.layer)


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
        if other.layer == row.layer and other.what == "output" and other is not row:
            if other.name == LAYER or f"{row.inside}.".startswith(f"{other.name}."):
                yield other
