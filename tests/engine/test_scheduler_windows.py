"""The scheduler where windows have few pages: chunks shrink, and nobody starves."""

from dataclasses import replace

from hybridrt.cache.spec import Window
from tests.cache.stand_ins import plan_of
from tests.engine.content_model import state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation


def windowed(num_slabs: int, **options: int) -> PageReader:
    """A state, chunks of 24 tokens and a window of 10; slabs of 1, 3 and 6 of their pages."""
    layers = [state_layer(80), token_layer(1, Window(24, chunked=True), 3)]
    layers.append(token_layer(1, Window(10)))
    plan = plan_of(layers, 2**11, page_size=1, kernel_block_size=1)
    assert [group.pages_per_slab for group in plan.groups] == [1, 3, 6]
    return PageReader(replace(plan, num_slabs=num_slabs), layers, **options)


def test_a_chunk_that_windows_have_no_pages_for_is_halved() -> None:
    reader = windowed(14)
    a = reader.add("a", range(90), 3)
    stops = [0]
    while not a.finish_reason:
        (row,) = reader.step()
        assert row.start == stops[-1]
        stops.append(row.stop)
    assert stops[:4] == [0, 22, 30, 45] and a.num_preemptions == 0
    assert a.output_token_ids == continuation(range(90), 3, reader.layers)


def test_a_sequence_that_runs_does_not_wait_for_one_that_takes_all_windows() -> None:
    reader = windowed(14)
    a = reader.add("a", range(4), 30)
    b = reader.add("b", range(40), 3)
    seen = [{row.sequence.sequence_id for row in reader.step()} for _ in range(3)]
    assert all("a" in step for step in seen)
    while reader.scheduler.has_unfinished:
        reader.step()
    assert a.num_preemptions == 0
    assert b.output_token_ids == continuation(range(40), 3, reader.layers)


def test_a_sequence_of_the_longest_length_that_the_plan_knows_never_starves() -> None:
    reader = windowed(11)
    assert reader.pool.plan.slabs_for(54) == 11
    a = reader.add("a", range(31), 23)
    for _ in range(100):
        if not reader.scheduler.has_unfinished:
            break
        assert reader.step(), "empty only if nothing is unfinished"
    assert a.finish_reason == "length"
