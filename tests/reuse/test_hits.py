"""How long hits are: never longer than what was computed before, and as long where it is there."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.cache.finder import RECENT
from hybridrt.cache.spec import Window
from hybridrt.engine.scheduler import REGULAR
from hybridrt.engine.sequence import Sequence as Running
from tests.cache.stand_ins import StandIn, plan_of
from tests.engine.content_model import state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation
from tests.harness.properties import bounded
from tests.reuse.cache_checks import assert_all, branches, prefix_of

AMPLE = 2**22
PAGE = 4
TOKENS = (token_layer(PAGE),)
WINDOWS = (token_layer(PAGE, Window(6)), token_layer(PAGE, Window(9, chunked=True)))
STATES = (state_layer(), state_layer(40))
STACKS: dict[str, tuple[StandIn, ...]] = {
    "tokens": TOKENS,
    "tokens and windows": (*TOKENS, *WINDOWS),
    "states": STATES,
    "tokens and states": (*TOKENS, *STATES),
    "all": (*TOKENS, *WINDOWS, *STATES),
}
WITH_STATES = ("tokens and states", "all")


def reader_of(layers: Sequence[StandIn], memory: int = AMPLE, **options: Any) -> PageReader:
    plan = plan_of(layers, memory, page_size=PAGE, kernel_block_size=PAGE)
    return PageReader(plan, layers, enable_prefix_caching=True, **options)


def serve(
    reader: PageReader, prompt: Sequence[int], num_new: int = 1, salt: str | None = None
) -> Running:
    """Runs a prompt alone, to its end."""
    running = reader.add(f"request {len(reader.histories)}", prompt, num_new, salt)
    while reader.scheduler.has_unfinished:
        assert reader.step()
    assert running.output_token_ids == continuation(prompt, num_new, reader.layers)
    return running


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def longest_hit(name: str, num_tokens: int) -> int:
    """Of a stack that has seen so many tokens and left its states behind them."""
    return num_tokens if name.endswith(("states", "all")) else num_tokens // PAGE * PAGE


class Oracle:
    """All earlier requests, and the positions behind which each left its states."""

    def __init__(self, reader: PageReader) -> None:
        self.page_size = reader.config.page_size
        self.interval = reader.config.checkpoint_interval or REGULAR
        self.has_states = any(group.kind == "state" for group in reader.pool.plan.groups)
        self.computed: list[list[int]] = []
        self.places: list[tuple[list[int], int]] = []

    def most(self, prompt: list[int]) -> int:
        """The longest prefix that any of them had, without the last token."""
        return min(len(prompt) - 1, max((common(prompt, c) for c in self.computed), default=0))

    def hit(self, prompt: list[int]) -> int:
        """Where a hit must be when nothing was ever dropped."""
        if not self.has_states:
            return self.whole_pages(self.most(prompt))
        limit = len(prompt) - 1
        fitting = [p for tokens, p in self.places if p <= limit and tokens[:p] == prompt[:p]]
        return max(fitting, default=0)

    def note(self, prompt: list[int], tokens: list[int]) -> None:
        """A prompt was computed, and all of `tokens` but the last."""
        start, end = self.hit(prompt), len(prompt) - 1
        passed = range(start + 1, end + 1)
        places = {p for p in passed if p % self.interval == 0 or p == end}
        junction = max(self.parting(prompt[:end], c) for c in [[], *self.computed])
        places |= {junction} & {*passed}
        places |= {len(tokens) - 1} - {0}
        self.places += [(tokens, place) for place in places]
        self.computed.append(tokens[:-1])

    def parting(self, prompt: list[int], other: list[int]) -> int:
        """Where two part, or the last page before it if that is less than half a page away."""
        place = common(prompt, other)
        whole = self.whole_pages(place)
        is_far = place - whole >= self.page_size // 2 and len(other) >= whole + self.page_size
        return place if is_far else whole

    def whole_pages(self, num_tokens: int) -> int:
        return num_tokens // self.page_size * self.page_size


@pytest.mark.parametrize("name", STACKS)
@bounded(25)
@given(
    growths=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 60),
            st.integers(0, 20),
            st.sampled_from([1, 1, 2, 9]),
            st.integers(0, 99),
        ),
        min_size=2,
        max_size=RECENT + 1,
    ),
    interval=st.sampled_from([None, 3, 8]),
    chunk=st.sampled_from([3, 16, 512]),
)
def test_ample_memory_finds_all_that_was_left(
    name: str, growths: list[tuple[int, int, int, int, int]], interval: int | None, chunk: int
) -> None:
    layers = STACKS[name]
    reader = reader_of(layers, checkpoint_interval=interval, max_num_batched_tokens=chunk)
    oracle = Oracle(reader)
    known: list[list[int]] = [[n % 5 for n in range(60)]]
    for parent, shared, more, num_new, seed in growths:
        prompt = known[parent % len(known)][:shared]
        prompt = [*prompt, *((seed * 7 + n * n) % 11 for n in range(more))] or [seed]
        running = serve(reader, prompt, num_new)
        assert running.num_cached_tokens == oracle.hit(prompt) <= oracle.most(prompt)
        oracle.note(prompt, running.token_ids)
        known.append(running.token_ids)
    assert_all(reader)


class TestNotes:
    """Each note, with what it stands for."""

    @pytest.mark.parametrize("name", WITH_STATES)
    def test_hit(self, name: str) -> None:
        reader = reader_of(STACKS[name])
        serve(reader, range(20))
        assert served(reader, range(20)) == ("hit", 19)

    @pytest.mark.parametrize("name", WITH_STATES)
    def test_no_match(self, name: str) -> None:
        reader = reader_of(STACKS[name])
        serve(reader, range(20))
        assert served(reader, range(1, 20)) == ("no match", 0)

    def test_below_page_size(self) -> None:
        reader = reader_of(STACKS["tokens"])
        serve(reader, range(20))
        assert served(reader, range(PAGE)) == ("below page size", 0)
        assert served(reader, range(PAGE + 1)) == ("hit", PAGE)

    @pytest.mark.parametrize("name", WITH_STATES)
    def test_no_checkpoint(self, name: str) -> None:
        reader = reader_of(STACKS[name])
        serve(reader, range(40))
        assert served(reader, [*range(21), 7, 7]) == ("no checkpoint", 0)
        assert served(reader, [*range(21), 8, 8]) == ("hit", 20)  # the junction was left

    def test_window_gone(self) -> None:
        """A decode leaves the window of its prompt behind, and another needs the room."""
        reader = reader_of((*TOKENS, *WINDOWS), 2**12)
        serve(reader, range(40), 20)
        windows = prefix_of(reader.pages).windows
        while len(windows.behind) > 0:
            assert windows.drop_one(windows.behind)
        assert served(reader, range(20)) == ("window gone", 0)

    @pytest.mark.parametrize("name", WITH_STATES)
    def test_evicted(self, name: str) -> None:
        reader = reader_of(STACKS[name], 2**13)
        longest = reader.pool.plan.longest_sequence() or 0
        serve(reader, range(30))
        for other in range(3):
            serve(reader, range(500 + other, 500 + other + min(longest - 1, 300)))
        assert served(reader, range(30)) == ("evicted", 0)

    @pytest.mark.parametrize("name", WITH_STATES)
    def test_salt_differs(self, name: str) -> None:
        reader = reader_of(STACKS[name])
        serve(reader, range(20), salt="a")
        assert served(reader, range(20), "b") == ("salt differs", 0)
        assert served(reader, range(20)) == ("salt differs", 0)
        assert served(reader, range(20), "a") == ("hit", 19)
        assert served(reader, range(20), "b") == ("hit", 19)

    def test_disabled(self) -> None:
        plan = plan_of(STACKS["all"], AMPLE, page_size=PAGE, kernel_block_size=PAGE)
        reader = PageReader(plan, STACKS["all"], enable_prefix_caching=False)
        serve(reader, range(20))
        assert served(reader, range(20)) == ("disabled", 0)


class TestFolding:
    """What nobody asks for is not in the tree, and is found all the same."""

    def test_only_what_is_asked_for_is_taken_in(self) -> None:
        reader = reader_of(STACKS["tokens and states"])
        prompts = [range(start, start + 20) for start in (0, 100, 200)]
        for prompt in prompts:
            serve(reader, prompt, 5)
        prefix = prefix_of(reader.pages)
        root = prefix.root(None)
        assert len(root.branches) == 3 and not root.children
        assert (prefix.num_pages, prefix.num_checkpoints) == (3 * 6, 3 * 2)
        assert serve(reader, prompts[1]).num_cached_tokens == 19
        assert len(root.branches) == 2 and len(root.children) == 1
        assert_all(reader)

    def test_one_that_runs_is_asked(self) -> None:
        reader = reader_of(STACKS["tokens and states"])
        first = reader.add("first", range(20), 9)
        for _ in range(3):
            assert reader.step()
        second = reader.add("second", [*range(19), 7, 7], 2)
        while reader.scheduler.has_unfinished:
            assert reader.step()
            assert_all(reader)
        assert second.num_cached_tokens == 19
        assert serve(reader, [*first.token_ids, 1]).num_cached_tokens == 28

    def test_one_in_a_turn_hangs_behind_the_turn_before(self) -> None:
        reader = reader_of(STACKS["tokens and states"])
        turn = serve(reader, range(16), 6)
        again = serve(reader, [*turn.token_ids, *range(50, 60)], 6)
        assert again.num_cached_tokens == 21
        assert [place.num_tokens for place in branches(prefix_of(reader.pages))] == [37]
        assert serve(reader, [*again.token_ids, 1]).num_cached_tokens == 37
        assert_all(reader)

    def test_the_tokens_of_what_was_dropped_are_known(self) -> None:
        """So the second who shares a part finds the states of where the first had parted."""
        reader = reader_of(STACKS["tokens and states"])
        serve(reader, range(40))
        reader.pages.forget_cached()
        assert_all(reader)
        assert served(reader, [*range(20), 7, 7]) == ("evicted", 0)
        assert_all(reader)
        assert served(reader, [*range(20), 8, 8]) == ("hit", 20)

    def test_the_last_states_may_go_before_those_of_the_prompt(self) -> None:
        reader = reader_of(STACKS["tokens and states"])
        first = serve(reader, range(20), 12)
        (place,) = prefix_of(reader.pages).root(None).branches.values()
        prefix_of(reader.pages)._drop_checkpoint(place.folded[-1])
        assert_all(reader)
        assert serve(reader, [*first.token_ids, 1]).num_cached_tokens == 19


def served(
    reader: PageReader, prompt: Sequence[int], salt: str | None = None
) -> tuple[str | None, int]:
    running = serve(reader, prompt, salt=salt)
    return running.cache_note, running.num_cached_tokens


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("num_tokens", [3, 9, 20, 41])
def test_of_equal_prompts_at_once_one_computes_and_the_others_wait(
    name: str, num_tokens: int
) -> None:
    reader = reader_of(STACKS[name])
    copies = [reader.add(f"copy {n}", range(num_tokens), 5) for n in range(6)]
    num_steps = 0
    while reader.scheduler.has_unfinished:
        assert reader.step()
        num_steps += 1
    hit = longest_hit(name, num_tokens - 1)
    assert [copy.num_cached_tokens for copy in copies] == [0, *([hit] * 5)]
    assert num_steps <= 6


def test_one_that_is_waited_for_may_go_without_a_word() -> None:
    reader = reader_of(STACKS["all"], max_num_batched_tokens=4)
    first = reader.add("first", range(40), 5)
    second = reader.add("second", range(40), 5)
    reader.step()
    assert len(reader.pages) == 1
    reader.scheduler.remove(first)
    while reader.scheduler.has_unfinished:
        assert reader.step()
    assert second.output_token_ids == continuation(range(40), 5, reader.layers)


@pytest.mark.parametrize("name", STACKS)
def test_salts_never_share(name: str) -> None:
    reader = reader_of(STACKS[name])
    for salt in (None, "", "a", "b", "a/b", "None"):
        assert serve(reader, range(30), salt=salt).num_cached_tokens == 0
    assert_all(reader)


@pytest.mark.parametrize("name", STACKS)
def test_a_turn_goes_on_where_the_last_one_ended(name: str) -> None:
    reader = reader_of(STACKS[name])
    conversation = list(range(10))
    for turn in range(5):
        running = serve(reader, conversation, 7)
        if turn:
            held = len(conversation) - 4  # all but the last answer's last token, and the new ones
            assert running.num_cached_tokens == longest_hit(name, held)
        conversation = [*running.token_ids, 50 + turn, 60, 61]
