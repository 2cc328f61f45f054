"""docs/models.md has what the models cache today."""

import re
from pathlib import Path

import pytest

from benchmarks.models_table import PAGE, WELL_KNOWN, row_of
from hybridrt.models import known_model_types

_ROWS = {
    match[1]: [cell.strip() for cell in match[0].strip("|").split("|")]
    for match in re.finditer(r"^\| `(\w+)` \|.*\|$", Path(PAGE).read_text(), re.M)
}


def test_every_model_has_a_row_and_an_error() -> None:
    assert list(_ROWS) == list(known_model_types())
    assert [name for name, row in _ROWS.items() if row[-1] == "-"] == []
    assert WELL_KNOWN.keys() <= set(known_model_types())


@pytest.mark.parametrize("model_type", known_model_types())
def test_the_row_is_what_the_plan_says(model_type: str) -> None:
    row = row_of(model_type)
    written = [f"`{row.model_type}`", row.sizes_of, row.mixers, row.kinds]
    written += [row.bytes_per_token, row.bytes_per_sequence]
    assert _ROWS[model_type][:-1] == written
