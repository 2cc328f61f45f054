"""How hypothesis runs here: the same examples every time, and no clock."""

from hypothesis import HealthCheck, settings

_SLOW_OR_SHARED = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)


def bounded(max_examples: int) -> settings:
    """Settings of a property that tries so many examples."""
    return settings(
        max_examples=max_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=_SLOW_OR_SHARED,
    )


PAGES = ((1, 1, "NHD"), (4, 1, "HND"), (16, 16, "HND"), (64, 16, "NHD"))
"""Sizes of pages and of kernel blocks, and layouts: where properties are tried at every size.

The other combinations are drawn.
"""
