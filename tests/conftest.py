"""What holds for all tests."""

import gc


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector needn't look at it again.

    It is some million objects, and each full collection would take most of a second.
    """
    gc.collect()
    gc.freeze()
