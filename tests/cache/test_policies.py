"""What every cache policy promises: the same calls, the same contents, the same refusals."""

import functools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.pool import POISON, Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
from tests.cache.stand_ins import CPU, StandIn, attention, plan_of, recurrent
from tests.engine.content_model import VOCAB, state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation

LONGEST = 40
OPTIONS: dict[str, dict[str, Any]] = {
    "paged": {"page_size": 4, "kernel_block_size": 2},
    "contiguous": {
        "page_size": 4,
        "kernel_block_size": 2,
        "cache_policy": "contiguous",
        "max_model_len": LONGEST - 1,
    },
}
LAYERS = [
    attention(24, 2),
    recurrent(5, 30),
    attention(16, 2, window=Window(6)),
    attention(8, 2, window=Window(10, chunked=True)),
    attention(40, 2),
]
every_policy = pytest.mark.parametrize("policy", OPTIONS)


@functools.cache
def planned(policy: str, memory: int) -> CachePlan:
    return plan_of(LAYERS, memory, **OPTIONS[policy])


def pages_of(policy: str, memory: int = 2**16) -> tuple[CachePlan, SequencePages]:
    plan = planned(policy, memory)
    return plan, SequencePages(Pool(plan, CPU, poison_freed_pages=True))


def ids(pages: SequencePages) -> dict[str, list[list[int]]]:
    return {name: [list(t.physical_ids) for t in pages.tables(name)] for name in pages}


@every_policy
def test_an_admitted_sequence_has_room_for_what_was_asked(policy: str) -> None:
    _, pages = pages_of(policy)
    for num_tokens in (0, 1, 3, 4, 5, LONGEST):
        pages.admit(f"{num_tokens}", num_tokens)
        assert pages.capacity(f"{num_tokens}") >= num_tokens
        assert pages.num_committed(f"{num_tokens}") == 0
    with pytest.raises(ValueError, match="'4' is in the cache already"):
        pages.admit("4", 4)


@every_policy
@given(st.data())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_can_means_does_and_a_refusal_changes_nothing(policy: str, data: st.DataObject) -> None:
    plan, pages = pages_of(policy, 2**14)
    lengths: dict[str, int] = {}
    for step in range(data.draw(st.integers(1, 25))):
        before, num_tokens = ids(pages), data.draw(st.integers(1, LONGEST))
        old = data.draw(st.sampled_from(["new", *lengths]))
        if old == "new":
            name = f"sequence {step}"
            can, do = pages.can_admit(num_tokens), lambda n=name, k=num_tokens: pages.admit(n, k)
        else:
            name, num_tokens = old, max(lengths[old], num_tokens)
            can = pages.can_extend(name, num_tokens)
            do = lambda n=name, k=num_tokens: pages.extend(n, k)  # noqa: E731
        if can:
            do()
            lengths[name] = num_tokens
            assert pages.capacity(name) >= num_tokens
        else:
            with pytest.raises(OutOfPages):
                do()
            assert ids(pages) == before
            if lengths and data.draw(st.booleans()):
                pages.free(lengths.popitem()[0])
    for name in lengths:
        pages.free(name)
    assert len(pages) == 0 and pages.can_admit(min(LONGEST, plan.longest_sequence() or LONGEST))


@every_policy
def test_pages_that_are_given_back_can_be_had_again(policy: str) -> None:
    _, pages = pages_of(policy)
    for _ in range(3):
        count = 0
        while pages.can_admit(LONGEST):
            pages.admit(f"{count}", LONGEST)
            count += 1
        assert count > 0 and not pages.can_admit(LONGEST)
        for name in [*pages]:
            pages.free(name)
    assert pages.can_admit(LONGEST)


@every_policy
def test_the_plan_knows_the_longest_and_how_many_fit(policy: str) -> None:
    plan, pages = pages_of(policy)
    longest = plan.longest_sequence()
    assert longest is not None and longest >= LONGEST
    assert pages.can_admit(longest, stop=1) and not pages.can_admit(longest + 1, stop=1)
    count = plan.sequences_of(LONGEST)
    assert count
    for index in range(count):
        pages.admit(f"{index}", LONGEST, stop=4)


@every_policy
def test_no_two_sequences_share_bytes_and_freed_ones_are_poison(policy: str) -> None:
    plan = planned(policy, 2**16)
    pool = Pool(plan, CPU, poison_freed_pages=True)
    pages = SequencePages(pool)
    for name in "abc":
        pages.admit(name, LONGEST)
        for group, table in zip(plan.groups, pages.tables(name), strict=True):
            assert table.kernel_ids.array.size
            pool.blocks(group)[table.kernel_ids.array] += 1
    assert pool.bytes.max() == 1
    held = int(pool.bytes.sum())
    pages.free("b")
    assert int((pool.bytes == POISON).sum()) == held // 3
    assert int((pool.bytes == 1).sum()) == held // 3 * 2


@every_policy
def test_a_commit_stays_within_what_was_admitted_and_never_goes_back(policy: str) -> None:
    _, pages = pages_of(policy)
    pages.admit("a", 12)
    pages.commit("a", 9)
    for wrong in (8, pages.capacity("a") + 1):
        with pytest.raises(AssertionError):
            pages.commit("a", wrong)
    assert pages.num_committed("a") == 9


@every_policy
def test_a_fork_goes_on_by_itself(policy: str) -> None:
    _, pages = pages_of(policy)
    pages.admit("a", 12)
    pages.commit("a", 10)
    pages.fork("a", "b")
    assert pages.num_committed("b") == 10
    pages.extend("b", 14)
    for own, other in zip(pages.tables("a"), pages.tables("b"), strict=True):
        assert own.physical_ids[-1] != other.physical_ids[-1], "both write into it"
    pages.free("a")
    pages.commit("b", 14)


def content_layers() -> list[StandIn]:
    windows = [token_layer(2, Window(6)), token_layer(2, Window(10, chunked=True), 1)]
    return [token_layer(2), state_layer(), *windows, state_layer(33)]


@every_policy
@pytest.mark.parametrize("num_sequences_fit", [1, 3, 20])
def test_every_sequence_reads_back_its_own_tokens_and_states(
    policy: str, num_sequences_fit: int
) -> None:
    layers = content_layers()
    plan = plan_of(layers, 2**15, **OPTIONS[policy])
    memory = plan.slab_bytes * plan.slabs_for(LONGEST, num_sequences_fit)
    plan = plan_of(layers, max(memory, 2**12), **OPTIONS[policy])
    reader = PageReader(plan, layers, max_num_batched_tokens=17, max_num_seqs=8)
    draw = random.Random(0)
    sequences = []
    for index in range(12):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(1, LONGEST - 10))]
        sequences.append(reader.add(f"{index}", prompt, 9))
    for step in range(1000):
        if not reader.scheduler.has_unfinished:
            break
        reader.step(fails=step % 20 == 7)
    for sequence in sequences:
        prompt = sequence.request.prompt_token_ids
        assert sequence.output_token_ids == continuation(prompt, 9, layers)
    reader.assert_nothing_is_held()


def test_contiguous_is_one_run_that_never_grows() -> None:
    plan, pages = pages_of("contiguous")
    pages.admit("a", 1)
    assert pages.capacity("a") == LONGEST
    before = ids(pages)
    for num_tokens in range(2, LONGEST + 1):
        pages.extend("a", num_tokens)
        pages.commit("a", num_tokens - 1)
    assert ids(pages) == before
    for group, table in zip(plan.groups, pages.tables("a"), strict=True):
        blocks = table.kernel_ids.array
        assert blocks.tolist() == list(range(blocks[0], blocks[0] + group.blocks_per_page))
