"""Frozen, validated values: the base of every configuration and request.

pydantic does the checking; this file turns what it finds into one plain
`ValueError` that names each field, the value it was given and what would be
right.
"""

import operator
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Value(BaseModel):
    """A frozen value whose fields are checked when it is made.

    Raises:
        ValueError: a field is unknown, missing, of another type or out of
            range. One line per field: `<Class>.<field>=<value>: <what is right>`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ValueError(_explain(type(self).__name__, error)) from None


def as_tuple(value: Any) -> Any:
    """`None`, one item, or a list of items as a tuple: for a field that takes any of them."""
    if value is None:
        return ()
    return (
        tuple(value)
        if isinstance(value, Sequence | set) and not isinstance(value, str | bytes)
        else (value,)
    )


def plain_int(value: Any) -> Any:
    """An integer of any kind, as numpy's, as an int. All else, a bool too, as it is."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def check_divides(value: Value, divisor: str, dividend: str) -> None:
    """Refuses a value whose field `divisor` doesn't divide its field `dividend`."""
    small, large = getattr(value, divisor), getattr(value, dividend)
    if large % small:
        raise ValueError(f"{divisor}={small} should divide {dividend}={large}")


def _explain(name: str, error: ValidationError) -> str:
    return "\n".join(_explain_one(name, dict(detail)) for detail in error.errors())


def _explain_one(name: str, detail: dict[str, Any]) -> str:
    where = ".".join([name, *(str(part) for part in detail["loc"])])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        return f"{where}: missing; this field is required"
    if detail["type"] == "extra_forbidden":
        return f"{where}={detail['input']!r}: there is no such field"
    if not detail["loc"]:  # a check over several fields names them itself
        return f"{where}: {message}"
    return f"{where}={detail['input']!r}: {message[:1].lower()}{message[1:]}"
