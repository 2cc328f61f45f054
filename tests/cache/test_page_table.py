"""Page tables: one place turns physical ids into kernel ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.page_table import PageTable, PhysicalId


def kernel_ids(pages: list[int], r: int) -> list[int]:
    return [page * r + block for page in pages for block in range(r)]


@pytest.mark.parametrize("r", [1, 2, 4, 16, 33])
def test_bug_06_a_page_is_r_kernel_blocks_and_is_converted_once(r: int) -> None:
    table = PageTable(r)
    pages = [PhysicalId(p) for p in (16, 3, 0, 7)]
    table.append(pages[:1])
    table.append(pages[1:])
    assert table.physical_ids == pages
    assert table.kernel_ids.array.tolist() == kernel_ids([16, 3, 0, 7], r)


@given(
    st.sampled_from([1, 2, 4, 33]),
    st.lists(st.one_of(st.lists(st.integers(0, 9999), max_size=40), st.integers(0, 60))),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_kernel_ids_keep_in_step_however_the_table_grows_and_shrinks(
    r: int, changes: list[list[int] | int]
) -> None:
    table, expected = PageTable(r), list[int]()
    for change in changes:
        if isinstance(change, int):
            assert table.resize(change) == expected[change:]
            expected = expected[:change]
        else:
            table.append([PhysicalId(page) for page in change])
            expected += change
        assert len(table) == len(expected)
        assert list(table.physical_ids) == expected
        assert table.kernel_ids.array.tolist() == kernel_ids(expected, r)
