"""Bugs of other systems' prefix caches (the numbers are FACTS.md's), each looked for by name.

Every token and state that a step reads is compared by the `PageReader` with what must be there.
"""

import pytest

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.prefix_tree import token_bytes
from tests.cache.stand_ins import StandIn
from tests.engine.page_reader import PageReader, continuation
from tests.reuse.cache_checks import (
    assert_all,
    assert_everything_can_be_had,
    checkpoints,
    pages_of_checkpoint,
    prefix_of,
)
from tests.reuse.test_hits import (
    PAGE,
    STACKS,
    STATES,
    TOKENS,
    WINDOWS,
    longest_hit,
    reader_of,
    serve,
)

WITH_STATES = [name for name in STACKS if "states" in name or name == "all"]


@pytest.mark.parametrize("name", STACKS)
def test_bug_03_what_was_dropped_is_found_no_more_though_its_pages_are_used_again(
    name: str,
) -> None:
    reader = reader_of(STACKS[name], 2**14)
    for _ in range(3):
        assert serve(reader, range(30), 5).num_cached_tokens == 0
        assert serve(reader, range(30), 5).num_cached_tokens == longest_hit(name, 29)
        assert_everything_can_be_had(reader.pages)  # all pages are taken by another, and come back
        assert reader.pages.match(token_bytes(range(30))).position == 0
        serve(reader, range(100, 130), 5)
        assert_all(reader)


@pytest.mark.parametrize("first_to_go", ["older", "newer"])
@pytest.mark.parametrize("name", STACKS)
def test_bug_03_of_two_who_computed_the_same_either_may_go_first(
    name: str, first_to_go: str
) -> None:
    """Both began when nothing was there, as two that were preempted may."""
    reader = reader_of(STACKS[name])
    older, newer = (reader.add(n, range(30), 8) for n in ("older", "newer"))
    reader.pages.is_coming = lambda match: False  # pyright: ignore[reportAttributeAccessIssue]
    reader.step()
    assert [older.num_cached_tokens, newer.num_cached_tokens] == [0, 0]
    reader.scheduler.remove({"older": older, "newer": newer}[first_to_go])
    assert_all(reader)
    other = newer if first_to_go == "older" else older
    while reader.scheduler.has_unfinished:
        assert reader.step()
    assert other.output_token_ids == continuation(range(30), 8, reader.layers)
    assert serve(reader, range(30)).num_cached_tokens == longest_hit(name, 29)
    assert_all(reader)


@pytest.mark.parametrize("name", STACKS)
def test_bug_05_the_last_token_of_a_prompt_is_computed_though_all_of_it_is_there(
    name: str,
) -> None:
    for num_tokens in range(1, 14):
        reader = reader_of(STACKS[name], checkpoint_interval=1)
        prompt = list(range(num_tokens))
        serve(reader, prompt, 9)  # it computed this prompt's last token, and more
        again = serve(reader, prompt)
        assert again.num_cached_tokens == longest_hit(name, num_tokens - 1)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_bug_07_nothing_is_found_before_the_step_that_writes_it_is_committed(
    name: str, chunk: int
) -> None:
    reader = reader_of(STACKS[name], max_num_batched_tokens=chunk, checkpoint_interval=1)
    sequence = reader.add("a", range(30), 9)
    while sequence.finish_reason is None:
        committed = reader.pages.num_committed("a") if "a" in reader.pages else 0
        rows = reader.scheduler.schedule()
        for _ in range(2):  # before the batch is built, and when the model is about to run
            seen = reader.pages.match(token_bytes([*sequence.token_ids, 7])).position
            assert seen <= committed if committed > 29 else seen == longest_hit(name, committed)
            reader.batches.build(rows)
        readings = reader.model.run(reader.batches.build(rows))
        assert reader.pages.match(token_bytes([*sequence.token_ids, 7])).position == seen
        reader.scheduler.commit(
            rows, [r.next_token % 1009 if r.samples else None for r in readings]
        )


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_bug_07_a_step_that_fails_leaves_no_hit(name: str, chunk: int) -> None:
    reader = reader_of(STACKS[name], max_num_batched_tokens=chunk, checkpoint_interval=1)
    sequence = reader.add("a", range(30), 1)
    whole = 0
    while sequence.finish_reason is None:
        reader.step(fails=True)
        assert reader.pages.match(token_bytes([*range(30), 7])).position == longest_hit(name, whole)
        reader.step()
        whole = 0 if sequence.finish_reason else reader.pages.num_committed("a")
    assert_all(reader)


@pytest.mark.parametrize("name", WITH_STATES)
def test_bug_08_pages_of_equal_tokens_behind_others_have_states_of_their_own(name: str) -> None:
    """So have equal tokens behind a page, and equal tokens under another salt."""
    reader = reader_of(STACKS[name], checkpoint_interval=1)
    alike = [7, 8, 9, 10, 11, 12, 13]
    prompts = [
        [*first, *alike] for first in ([1, 2, 3, 4], [4, 3, 2, 1], [1, 2, 3, 5], [5] * 8, [])
    ]
    for salt in (None, "a"):
        for prompt in prompts:
            assert serve(reader, prompt, 3, salt).num_cached_tokens <= 3
    for salt in (None, "a"):
        for prompt in reversed(prompts):
            again = reader.add(f"again {salt} {prompt}", [*prompt, 99], 5, salt)
            reader.step()  # reads the first state, and compares it
            assert again.num_cached_tokens == len(prompt) - 1
            while reader.scheduler.has_unfinished:
                reader.step()
            assert again.output_token_ids == continuation([*prompt, 99], 5, reader.layers)
    assert_all(reader)


@pytest.mark.parametrize("name", WITH_STATES)
def test_bug_08_a_state_that_is_read_first_is_no_ones_to_write(name: str) -> None:
    """Several begin at one checkpoint and go different ways; it stays as it was."""
    reader = reader_of(STACKS[name])
    serve(reader, range(20), 1)
    for turn in range(2):
        ways = [reader.add(f"{turn} {n}", [*range(19), 50 + n, n], 6) for n in range(4)]
        while reader.scheduler.has_unfinished:
            reader.step()
        for n, way in enumerate(ways):
            assert way.num_cached_tokens >= 19
            prompt = [*range(19), 50 + n, n]
            assert way.output_token_ids == continuation(prompt, 6, reader.layers)
    assert_all(reader)


@pytest.mark.parametrize("interval", [1, 3, PAGE])
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
@pytest.mark.parametrize("name", WITH_STATES)
def test_bug_09_states_go_on_where_a_chunk_is_cut_for_a_checkpoint(
    name: str, chunk: int, interval: int
) -> None:
    reader = reader_of(STACKS[name], checkpoint_interval=interval, max_num_batched_tokens=chunk)
    for prompt in (range(23), [*range(13), *range(40, 49)], [*range(17), 3, 3, 3]):
        serve(reader, prompt, 3)
    positions = {checkpoint.position for checkpoint in checkpoints(prefix_of(reader.pages))}
    assert positions >= {*range(interval, 22, interval)}
    assert_all(reader)


@pytest.mark.parametrize("name", ["tokens and states", "all"])
def test_bug_16_a_hit_is_where_a_state_is_however_many_pages_go_on(name: str) -> None:
    """States stand behind 8 and 20 tokens and at the ends; pages are there up to any of 28."""
    reader = reader_of(STACKS[name])
    serve(reader, range(29))
    serve(reader, [*range(9), 90, 91])  # it parts early in the third page
    serve(reader, [*range(20), 92, 93])
    where = {checkpoint.position for checkpoint in checkpoints(prefix_of(reader.pages))}
    assert {8, 20, 28} <= where
    for num_tokens in range(1, 29):
        prompt = [*range(num_tokens), 95]
        expected = max(p for p in (0, 8, 20, 28) if p <= num_tokens)
        match = reader.pages.match(token_bytes(prompt))
        assert match.position == expected
        assert (match.checkpoint is None) == (expected == 0)
        assert match.checkpoint is None or match.checkpoint.position == expected


def test_bug_16_a_state_that_went_takes_its_hit_along() -> None:
    """The pages are there, further than the next state before; the hit is at that one."""
    reader = reader_of(STACKS["tokens and states"], checkpoint_interval=5)
    serve(reader, range(29))
    prefix = prefix_of(reader.pages)
    left = {checkpoint.position: checkpoint for checkpoint in checkpoints(prefix)}
    for position in sorted(left, reverse=True):
        assert reader.pages.match(token_bytes(range(40))).position == position
        prefix._drop_checkpoint(left[position])
    assert reader.pages.match(token_bytes(range(40))).position == 0
    assert serve(reader, range(40)).num_cached_tokens == 0
    assert_all(reader)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("interval", [None, 3])
def test_bug_20_layers_of_a_draft_model_cut_no_hit(with_states: bool, interval: int | None) -> None:
    """Windows and pages of their own beside the target's: the same prompts hit as far."""
    target = (*TOKENS, *STATES) if with_states else TOKENS
    hits: list[list[int]] = []
    for draft in ((), WINDOWS, (*WINDOWS, *TOKENS)):
        reader = reader_of((*target, *draft), checkpoint_interval=interval)
        cached: list[int] = []
        for shared in (0, 30, 30, 17, 17, 9, 25, 3):
            prompt = [*range(shared), 60 + len(cached), 61, 62, 63, 64]
            cached.append(serve(reader, prompt, 6).num_cached_tokens)
        conversation = list(range(12))
        for turn in range(4):
            running = serve(reader, conversation, 7)
            cached.append(running.num_cached_tokens)
            conversation = [*running.token_ids, 50 + turn, 60, 61]
        hits.append(cached)
        assert_all(reader)
    assert hits[0] == hits[1] == hits[2] and sum(hits[0]) > 80


@pytest.mark.parametrize("draft", [(), WINDOWS], ids=["alone", "with a draft"])
@pytest.mark.parametrize("target", [TOKENS, (*TOKENS, *STATES)], ids=["tokens", "and states"])
def test_bug_20_a_hit_needs_of_windows_no_more_than_their_last_tokens(
    target: tuple[StandIn, ...], draft: tuple[StandIn, ...]
) -> None:
    """All that they have left behind is dropped, and a conversation still hits as far."""
    reader = reader_of((*target, *draft))
    prefix, conversation = prefix_of(reader.pages), list(range(40))
    name = "all" if target[1:] else "tokens"
    for turn in range(4):
        running = serve(reader, conversation, 17)
        if turn:
            assert running.num_cached_tokens == longest_hit(name, len(conversation) - 4)
        while prefix.windows.drop_one(prefix.windows.behind):
            pass
        conversation = [*running.token_ids, 50 + turn, 60, 61]
    assert_all(reader)


def test_pages_of_checkpoints_are_in_no_table() -> None:
    """What bug 8 needs to come about: a running sequence's own state kept as a checkpoint."""
    reader: PageReader = reader_of(STACKS["all"], checkpoint_interval=2)
    sequences = [reader.add(f"{n}", [n, *range(20)], 9) for n in range(3)]
    states = [g for g, group in enumerate(reader.pool.plan.groups) if group.kind == "state"]
    while reader.scheduler.has_unfinished:
        reader.step()
        prefix = prefix_of(reader.pages)
        kept = {page for c in checkpoints(prefix) for page in pages_of_checkpoint(prefix, c)}
        own: set[tuple[int, PhysicalId]] = set()
        for name in reader.pages:
            tables = reader.pages.tables(name)
            own |= {(g, page) for g in states for page in tables[g].physical_ids}
        assert not kept & own
    assert all(sequence.num_output_tokens == 9 for sequence in sequences)
