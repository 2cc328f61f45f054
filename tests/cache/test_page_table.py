"""Page tables: one place turns physical ids into kernel ids."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridrt
from hybridrt.cache.page_table import KernelIds, PageTable, PhysicalId, to_kernel_ids

PAGE = st.integers(0, 9999).map(PhysicalId)
PLACE = st.integers(0, 10**6)  # modulo what there is


def kernel_ids(pages: list[PhysicalId], r: int) -> list[int]:
    return [page * r + block for page in pages for block in range(r)]


@pytest.mark.parametrize("r", [1, 2, 4, 16, 33])
def test_bug_06_a_page_is_r_kernel_blocks_and_is_converted_once(r: int) -> None:
    table = PageTable(r)
    pages = [PhysicalId(p) for p in (16, 3, 0, 7)]
    table.append(pages[:1])
    table.append(pages[1:])
    assert table.physical_ids == pages
    assert table.kernel_ids.array.tolist() == kernel_ids(pages, r)
    assert to_kernel_ids(pages, r).array.tolist() == kernel_ids(pages, r)


def test_bug_06_converting_kernel_ids_is_a_type_error() -> None:
    ids = to_kernel_ids([PhysicalId(3)], 4)
    with pytest.raises(TypeError, match="a page's id is converted once"):
        to_kernel_ids(ids, 4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        PageTable(4, ids)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        np.asarray(ids) * 4  # they are no array, so nothing computes with them unnoticed


SNIPPET = """
from hybridrt.cache.page_table import KernelIds, PageTable, to_kernel_ids
def twice(ids: KernelIds) -> KernelIds: return to_kernel_ids(ids, 4)
def of_kernels(ids: KernelIds) -> PageTable: return PageTable(4, ids)
def of_numbers(table: PageTable) -> None: table.append([3])
def right(table: PageTable) -> KernelIds: return to_kernel_ids(table.physical_ids, 4)
"""


def test_bug_06_a_type_checker_sees_every_double_conversion(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "snippet.py").write_text(SNIPPET)
    config = {"extraPaths": [str(Path(hybridrt.__file__).parents[1])], "include": ["snippet.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    command += ["--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    try:
        errors = json.loads(found.stdout)["generalDiagnostics"]
    except ValueError:
        pytest.skip(f"pyright doesn't run here: {found.stderr[-200:]}")
    lines = {error["range"]["start"]["line"]: error["rule"] for error in errors}
    assert lines == dict.fromkeys((2, 3, 4), "reportArgumentType")


def append(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    more = data.draw(st.lists(PAGE, max_size=20))
    table.append(more)
    pages += more


def pop(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    if pages:
        assert table.pop() == pages.pop()


def resize(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 30))
    assert table.resize(size) == pages[size:]
    del pages[size:]


def remove(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    start, stop = sorted(data.draw(PLACE) % (len(pages) + 1) for _ in range(2))
    assert table.remove(start, stop) == pages[start:stop]
    del pages[start:stop]


def release(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    count, before = data.draw(PLACE) % (len(pages) + 1), table.num_released
    assert table.release(count) == pages[:count]
    assert table.num_released == before + count
    del pages[:count]


def replace(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    if pages:
        index, page = data.draw(PLACE) % len(pages), data.draw(PAGE)
        assert table.set(index, page) == pages[index]
        pages[index] = page


def swap(table: PageTable, pages: list[PhysicalId], data: st.DataObject) -> None:
    if pages:
        a, b = (data.draw(PLACE) % len(pages) for _ in range(2))
        table.swap(a, b)
        pages[a], pages[b] = pages[b], pages[a]


Change = Callable[[PageTable, list[PhysicalId], st.DataObject], None]
CHANGES: tuple[Change, ...] = (append, append, pop, resize, remove, release, replace, swap)


@given(
    st.sampled_from([1, 2, 4, 33]),
    st.lists(PAGE, max_size=12),
    st.lists(st.sampled_from(CHANGES), max_size=14),
    st.data(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_kernel_ids_keep_in_step_whatever_is_done_to_a_table(
    r: int, pages: list[PhysicalId], changes: list[Change], data: st.DataObject
) -> None:
    table = PageTable(r, pages)
    pages = list(pages)
    for change in [None, *changes]:
        if change is not None:
            change(table, pages, data)
        expected = kernel_ids(pages, r)
        assert len(table) == len(pages) and table.physical_ids == pages
        assert table.kernel_ids.array.tolist() == expected
        assert table.kernel_ids.array.dtype == np.int32
        assert to_kernel_ids(table.physical_ids, r).array.tolist() == expected
        start = data.draw(st.integers(0, len(expected)))
        assert table.kernel_ids_from(start).tolist() == expected[start:]


def test_a_window_that_slides_for_ever_takes_no_more_memory() -> None:
    table = PageTable(4, [PhysicalId(page) for page in range(5)])
    for page in range(5, 2000):
        table.append([PhysicalId(page)])
        table.release(1)
    assert table.num_released == 1995 and len(table) == 5
    assert len(table._kernel) <= 4 * 4 * 5


def test_kernel_ids_are_a_view_and_not_a_copy() -> None:
    table = PageTable(2, [PhysicalId(1), PhysicalId(5)])
    assert isinstance(table.kernel_ids, KernelIds)
    assert np.shares_memory(table.kernel_ids.array, table.kernel_ids_from(1))
