"""The rows that stand for others in tests of many models."""

from tests.harness.engines import open_llm
from tests.harness.rows import FIRST_ROWS, MODEL_TYPES, OF_EACH_CACHE, ROWS
from tests.oracle import BY_NAME


def test_every_model_type_has_a_row() -> None:
    assert {BY_NAME[name].model_type for name in ROWS} == set(MODEL_TYPES)


def test_every_stack_of_caches_has_a_row() -> None:
    first = {_caches(name): name for name in reversed(FIRST_ROWS)}
    assert [name for name in FIRST_ROWS if name in first.values()] == [*OF_EACH_CACHE]


def _caches(name: str) -> frozenset[tuple[object, ...]]:
    """What its layers keep, and which classes of layers do."""
    found = set[tuple[object, ...]]()
    for layer in open_llm(name).engine.model.cached_layers().values():
        spec = layer.cache_spec
        states = tuple((state.name, state.tokens_per_entry > 1) for state in spec.states)
        chunked = spec.window is not None and spec.window.chunked
        found.add((type(layer), spec.kind, chunked, states))
    return frozenset(found)
