"""One thread: tiny layers lose more to waking threads than they win."""

from collections.abc import Iterator

import pytest

from tests.harness.threads import one_thread


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
