"""What the keys of a `config.json` must have in common."""

from collections.abc import Mapping, Sequence
from typing import Any


def one_value(default: int, **named: int | None) -> int:
    """What a config calls by one of these names, or `default`.

    Raises:
        ValueError: two of them have unlike values.
    """
    given = {name: value for name, value in named.items() if value is not None}
    if len(set(given.values())) > 1:
        raise ValueError(f"{given} should be the same: they are names of one number")
    return next(iter(given.values()), default)


def check_agreement(config: object, right: Mapping[str, Any]) -> None:
    """Refuses a key of `config` that has neither this value nor None.

    Raises:
        ValueError: there is one; `right` is what follows from the other keys.
    """
    for key, expected in right.items():
        value = getattr(config, key)
        if value is not None and value != expected:
            raise ValueError(f"{key}={value} should be {expected}, as the other keys say")


def check_one_for_each_layer(num_hidden_layers: int, **lists: Sequence[object] | None) -> None:
    """Refuses a list that has more or fewer entries than there are layers; None is none.

    Raises:
        ValueError: there is one.
    """
    for key, entries in lists.items():
        if entries is not None and len(entries) != num_hidden_layers:
            raise ValueError(
                f"config.json: {key} has {len(entries)} entries; should have "
                f"num_hidden_layers={num_hidden_layers}"
            )
