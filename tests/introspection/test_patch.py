"""What is written is what is used, by nobody else, and can be taken back bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridrt import LLM, SamplingParams
from hybridrt.cache.page_table import PhysicalId
from hybridrt.introspection.layer import SessionLayer
from hybridrt.session import Session
from tests.session.open_sessions import (
    ATTENTION,
    COMPRESSED,
    DEEPSEEK,
    EVERY_KIND,
    EVERY_STATE,
    GREEDY,
    INDEXED,
    NGRAMS,
    OTHER,
    PROMPT,
    cold,
    nothing_left,
    open_llm,
)

NAMES = (EVERY_KIND, EVERY_STATE, ATTENTION, DEEPSEEK, COMPRESSED, INDEXED, NGRAMS)
MORE = [7, 11, 13]


def noise(layer: SessionLayer) -> dict[str, Tensor]:
    """Other values for everything that a layer holds."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(x.shape, generator=generator).to(x.dtype)
        for name, x in layer.read().items()
        if name != "positions"
    }


def held_bytes(session: Session) -> dict[str, Tensor]:
    """The bytes of all pages that a session has, under their ids; padding included."""
    engine = session._engine
    tables = engine.pages.tables(session._held.name)
    found: dict[str, Tensor] = {}
    for group, table in zip(engine.plan.groups, tables, strict=True):
        blocks = engine.pool.blocks(group)
        for block in table.kernel_ids.array.tolist():
            found[f"{group.name} {block}"] = blocks[block].clone()
    return found


def cached_bytes(llm: LLM) -> dict[str, Tensor]:
    """The bytes of all pages that the prefix cache keeps."""
    engine, found = llm.engine, {}
    for index, group in enumerate(engine.plan.groups):
        pages = engine.pool.blocks(group).unflatten(0, (-1, group.blocks_per_page))
        for page in range(len(pages)):
            if not engine.pool.allocator.is_kept(index, PhysicalId(page)):
                continue
            found[f"{group.name} {page}"] = pages[page].clone()
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[n]) for n, x in one.items())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_there_and_undone_bit_for_bit(name: str) -> None:
    llm = open_llm(name)
    with nothing_left(llm), llm.session(PROMPT) as session:
        logits, before, cached = session.logits, held_bytes(session), cached_bytes(llm)
        for layer in session.layers:
            values = noise(layer)
            undo = layer.write(values)
            given = layer.read()
            assert all(torch.equal(given[n], x) for n, x in values.items()), layer
            assert session.was_written_to and torch.equal(session.logits, logits)
            session.append(MORE)
            assert not torch.equal(session.logits, logits)
            undo.undo()
            assert session.token_ids == PROMPT and torch.equal(session.logits, logits)
            assert not session.was_written_to and same(held_bytes(session), before)
        assert all(torch.equal(x, cached_bytes(llm)[n]) for n, x in cached.items())
        assert len(llm.engine.pages) == 1
        assert session.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT, GREEDY)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_layout": "NHD"},
        {"kernel_block_size": 2},
        {"page_size": 16, "kernel_block_size": 4, "kv_layout": "NHD"},
        {"cache_policy": "contiguous", "max_num_seqs": 4},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_some_tokens_however_they_lie_in_pages(options: dict[str, Any]) -> None:
    llm = open_llm(EVERY_KIND, **options)
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        before = held_bytes(session)
        for layer in session.layers:
            if layer.kind == "state":
                continue
            whole = layer.read()
            name = "c_kv" if layer.mixer == "mla" else "v"
            first = len(PROMPT) - len(whole[name])
            for tokens in (len(PROMPT) - 1, slice(34, None), range(len(PROMPT) - 1, 32, -2)):
                listed = range(*tokens.indices(37)) if isinstance(tokens, slice) else tokens
                rows = [listed - first] if type(listed) is int else [t - first for t in listed]
                values = torch.randn(len(rows), *whole[name].shape[1:])
                with layer.write(name, values, tokens=tokens):
                    given = layer.read()
                    assert torch.equal(given[name][rows], values)
                    others = [i for i in range(len(whole[name])) if i not in rows]
                    assert torch.equal(given[name][others], whole[name][others])
                    rest = [n for n in whole if n != name]
                    assert all(torch.equal(given[n], whole[n]) for n in rest)
        assert same(held_bytes(session), before)


@pytest.mark.parametrize("kv_cache_dtype", ["fp8_e4m3", "int8"])
def test_quantised_pages_hold_what_new_tokens_with_these_values_would(kv_cache_dtype: str) -> None:
    name = ATTENTION if kv_cache_dtype == "int8" else EVERY_KIND
    llm = open_llm(name, kv_cache_dtype=kv_cache_dtype)
    with llm.session(PROMPT) as session, llm.session(OTHER + PROMPT[:14]) as other:
        _ = session.logits, other.logits
        for ours, theirs in zip(session.layers, other.layers, strict=True):
            values = {n: x for n, x in theirs.read().items() if n != "positions"}
            if ours.kind == "window":
                continue
            before = held_bytes(session)
            # What was quantised once is not changed by being quantised again.
            with ours.write(values):
                again = ours.read()
                for key, x in values.items():
                    torch.testing.assert_close(again[key], x, rtol=0, atol=0)
            assert same(held_bytes(session), before)
            values = {n: torch.randn_like(x) for n, x in values.items()}
            ours.write(values)
            step = 2**-4 if kv_cache_dtype == "fp8_e4m3" else 0.5 / 127
            for key, x in ours.read().items():
                if ours.kind != "state":
                    assert (x - values[key]).abs().max() <= 1.01 * step * values[key].abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_nobody_else_sees_what_was_written(name: str) -> None:
    """Not forks, not sessions and requests with the same tokens, then or later."""
    llm = open_llm(name, cache_memory="4MiB")
    with nothing_left(llm), llm.session(PROMPT) as session, llm.session() as twin:
        _ = session.logits
        fork = session.fork()
        twin.append(PROMPT)
        _ = twin.logits
        before = [[layer.read() for layer in one.layers] for one in (fork, twin)]
        for layer in session.layers:
            layer.write(noise(layer))
        written = session.generate(GREEDY).outputs[0].token_ids
        session.append(OTHER)
        _ = session.logits
        for one, tensors in zip((fork, twin), before, strict=True):
            for layer, held in zip(one.layers, tensors, strict=True):
                given = layer.read()
                assert all(torch.equal(given[n], x) for n, x in held.items())
        everything = session.token_ids
        with session.fork() as heir:
            assert heir.was_written_to
        session.close()
        for number, tokens in enumerate(
            ([*everything, 3], everything, [*PROMPT, *written, 3], PROMPT)
        ):
            (output,) = llm.generate([tokens], GREEDY)
            if not number:  # later ones find what this one has computed
                assert output.num_cached_tokens <= len(PROMPT)
            assert output.outputs[0].token_ids == cold(name, tokens, GREEDY)
        for one in (fork, twin):
            assert one.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT, GREEDY)
        fork.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_session_with_all_layers_of_another_goes_on_as_that(name: str) -> None:
    llm, twin = open_llm(name, cache_memory="4MiB"), open_llm(name)
    others = [5 + t * 13 % 60 for t in range(len(PROMPT))]
    with llm.session(PROMPT) as session, twin.session(others) as other:
        logits = session.logits, other.logits
        for ours, theirs in zip(session.layers, other.layers, strict=True):
            ours.swap(theirs).keep()
        assert torch.equal(session.logits, logits[0])
        if name == NGRAMS:  # whose layers look at the token ids themselves too
            return
        for token in MORE:
            session.append([token])
            other.append([token])
            with llm.session([*others, *MORE[: MORE.index(token) + 1]]) as right:
                torch.testing.assert_close(session.logits, right.logits, rtol=1e-4, atol=1e-4)
            with llm.session([*PROMPT, *MORE[: MORE.index(token) + 1]]) as right:
                torch.testing.assert_close(other.logits, right.logits, rtol=1e-4, atol=1e-4)


def test_swapping_is_undone_in_both() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session, llm.session(PROMPT[::-1]) as other:
        _ = session.logits, other.logits
        before = held_bytes(session), held_bytes(other)
        for ours, theirs in zip(session.layers, other.layers, strict=True):
            held = ours.read(), theirs.read()
            with ours.swap(theirs):
                assert all(torch.equal(ours.read()[n], x) for n, x in held[1].items())
                assert all(torch.equal(theirs.read()[n], x) for n, x in held[0].items())
        assert same(held_bytes(session), before[0]) and same(held_bytes(other), before[1])
        with llm.session(OTHER) as short, pytest.raises(ValueError, match="hold the same"):
            session.layers[2].swap(short.layers[2])
        with pytest.raises(ValueError, match="hold the same"):
            session.layers[1].swap(other.layers[2])
        assert not session.was_written_to and not other.was_written_to


def test_ablated_states_are_as_before_the_first_token() -> None:
    with open_llm(EVERY_STATE).session(PROMPT) as session:
        for layer in session.layers:
            before = layer.read()
            with layer.ablate():
                gone = [n for n, x in layer.read().items() if not x.any()]
                kept = [n for n, x in layer.read().items() if torch.equal(x, before[n])]
                if layer.kind == "state":
                    assert set(gone) == set(before)
                else:
                    assert (gone, kept) in ((["v"], ["k"]), (["c_kv"], ["k_pe"]))
            if layer.kind != "state":
                with layer.ablate(tokens=range(5, 9)):
                    name = {"attention": "v", "mla": "c_kv"}[layer.mixer]
                    rows = layer.read()[name]
                    zero = [t for t, row in enumerate(rows) if not row.any()]
                    assert zero == [5, 6, 7, 8]


def test_undo_goes_back_over_later_writes_and_all_that_was_generated() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        before = held_bytes(session)
        first = session.layers[1].ablate()
        between = held_bytes(session)
        session.generate(GREEDY)
        second = session.layers[2].write(noise(session.layers[2]))
        third = session.layers[0].ablate()
        session.append(OTHER)
        _ = session.logits
        second.undo()
        assert session.was_written_to and len(session.token_ids) == len(PROMPT) + 9
        for gone in (second, third):
            assert not gone.possible
            with pytest.raises(ValueError, match="can't be undone"):
                gone.undo()
        first.undo()
        assert same(held_bytes(session), before) and not same(between, before)
        assert session.generate(GREEDY).outputs[0].token_ids == cold(EVERY_KIND, PROMPT, GREEDY)


def test_an_error_in_the_middle_of_a_stream_undoes_too() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        before = held_bytes(session)
        with pytest.raises(KeyError), session.layers[1].ablate():
            for output in session.stream(GREEDY):
                if len(output.outputs[0].token_ids) == 3:
                    raise KeyError
        assert same(held_bytes(session), before) and session.token_ids == PROMPT
        assert session.generate(GREEDY).outputs[0].token_ids == cold(EVERY_KIND, PROMPT, GREEDY)


def test_backups_go_when_nobody_can_undo_any_more() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session:
        for _ in range(20):
            session.layers[1].ablate()  # and drops the Undo
        assert len(llm.engine.pages) <= 2
        session.append([5])
        _ = session.logits
        assert len(llm.engine.pages) == 1
        undo = session.layers[1].ablate()
        assert len(llm.engine.pages) == 2
        undo.keep()
        assert len(llm.engine.pages) == 1 and not undo.possible
        with pytest.raises(ValueError, match="can't be undone"):
            undo.keep()
        with session.layers[1].ablate():
            session.close()


def test_a_session_that_was_written_to_is_neither_saved_nor_cut_nor_computed_again(
    tmp_path: Path,
) -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session:
        undo = session.layers[1].ablate()
        with pytest.raises(ValueError, match=r"session-0 was written to.*can't be saved"):
            session.save(tmp_path / "session")
        with pytest.raises(ValueError, match=r"session-0 was written to.*can't be truncated"):
            session.truncate(8, recompute=True)
        with pytest.raises(ValueError, match=r"was written to: what .* held behind 20 tokens"):
            session.layers[1].read(20)
        assert session.layers[2].read(20).source == "cache"
        assert not (tmp_path / "session").exists()
        undo.undo()
        session.save(tmp_path / "session")
        session.truncate(8, recompute=True)


def test_a_write_that_had_to_give_its_pages_up_is_not_computed_again() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session:
        undo = session.layers[1].ablate()
        stream = session.stream(SamplingParams(max_tokens=20, ignore_eos=True))
        next(stream), next(stream)
        run = session._held.run
        assert run is not None
        llm.engine._scheduler.preempt(run)
        with pytest.raises(ValueError, match="session-0 was written to, and had to give up"):
            list(stream)
        for use in (lambda: session.logits, session.generate, session.fork):
            with pytest.raises(ValueError, match="had to give up its pages"):
                use()
        assert not llm.has_unfinished
        undo.undo()
        assert session.generate(GREEDY).outputs[0].token_ids == cold(EVERY_KIND, PROMPT, GREEDY)


def test_after_an_error_that_cost_all_pages_it_is_refused_by_name() -> None:
    llm = open_llm(EVERY_KIND)
    with nothing_left(llm), llm.session(PROMPT) as session, llm.session(OTHER) as other:
        undo = session.layers[1].ablate()
        _ = other.logits
        stream = session.stream(GREEDY)
        next(stream)
        llm.engine._start_over()
        with pytest.raises(ValueError, match="had to give up its pages"):
            list(stream)
        with pytest.raises(ValueError, match="all pages were lost"):
            undo.undo()
        assert other.generate(GREEDY).outputs[0].token_ids == cold(EVERY_KIND, OTHER, GREEDY)


def test_without_room_nothing_is_changed() -> None:
    llm = open_llm(EVERY_STATE, cache_memory="192KiB", max_model_len=48, max_num_seqs=2)
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        others: list[Session] = []
        with pytest.raises(MemoryError):
            for _ in range(100):
                others.append(session.fork())
        before = held_bytes(session)
        with pytest.raises(MemoryError):
            session.layers[1].ablate()
        assert same(held_bytes(session), before) and not session.was_written_to
        for one in others:
            one.close()
        with session.layers[1].ablate():
            assert session.was_written_to


@pytest.mark.parametrize(
    ("index", "name", "values", "tokens", "message"),
    [
        (1, "v", torch.zeros(3), None, r"'v' should be one of \['conv_state', 'ssm_state'\]"),
        (0, "positions", torch.zeros(1).long(), -1, r"'positions' should be one of"),
        (1, "ssm_state", torch.zeros(3), None, r"the shape \[3\]; should be \[64, 8\].*state_size"),
        (1, "ssm_state", torch.zeros(64, 8).int(), None, r"torch.int32; should be of torch.float"),
        (1, "ssm_state", [0.0], None, r"ssm_state should be a tensor, not \[0.0\]"),
        (1, "ssm_state", None, None, r"write\('ssm_state'\) needs values"),
        (1, "ssm_state", torch.zeros(64, 8), 3, r"tokens=3 should be None: it holds a state"),
        (2, "v", torch.zeros(1, 2, 12), 37, r"tokens=37 should be some of 0 to 36"),
        (2, "v", torch.zeros(1, 2, 12), -1, r"tokens=-1 should be some of 0 to 36"),
        (2, "v", torch.zeros(0, 2, 12), slice(5, 5), r"should be some of 0 to 36"),
        (2, "v", torch.zeros(1, 2, 12), [3], r"tokens=\[3\] should be a position, range or slice"),
        (0, "v", torch.zeros(4, 2, 12), range(4), r"should be some of 32 to 36, which it holds"),
        (2, "v", torch.zeros(4, 2, 12), range(3), r"\[4, 2, 12\]; should be \[3, 2, 12\]"),
        (2, {"v": 0}, torch.zeros(4, 2, 12), range(3), r"values come with their names"),
        (2, None, None, None, r"name=None should be a name that read\(\) gives"),
        (2, {}, None, None, r"name=\{\} should be .* at least one"),
        (2, "v", torch.zeros(1, 2, 12), np.int64(37), r"tokens=37 should be some of 0 to 36"),
        (2, "v", torch.zeros(1, 2, 12), True, r"tokens=True should be a position"),
    ],
)
def test_what_can_not_be_written_is_refused_by_name(
    index: int, name: Any, values: Any, tokens: Any, message: str
) -> None:
    with _llm().session(PROMPT) as session:
        tokens = 36 if tokens == -1 and index == 0 else tokens
        with pytest.raises(ValueError, match=message):
            session.layers[index].write(name, values, tokens=tokens)
        assert not session.was_written_to


@pytest.mark.parametrize("other", [0, None, "session"])
def test_only_layers_can_be_swapped(other: Any) -> None:
    with _llm().session(PROMPT) as session:
        other = session if other == "session" else other
        with pytest.raises(ValueError, match=r"other=.* should be a layer, as session.layers\[i\]"):
            session.layers[1].swap(other)
        assert not session.was_written_to


def test_numpys_integers_are_positions() -> None:
    token: Any = np.int64(3)
    end: Any = np.int64(37)
    with _llm().session(PROMPT) as session:
        with session.layers[2].ablate(tokens=token):
            assert not session.layers[2].read()["v"][3].any()
        session.layers[1].write("ssm_state", torch.zeros(64, 8), position=end).undo()
        with pytest.raises(ValueError, match="position=36 should be 37"):
            session.layers[1].write("ssm_state", torch.zeros(64, 8), position=end - 1)


def test_an_undo_says_of_what_it_is() -> None:
    with _llm().session(PROMPT) as one, _llm().session(OTHER) as other:
        undo = one.layers[1].ablate()
        name, second = one._held.name, other._held.name
        assert repr(undo) == f"<Undo of a write to {name}: possible>"
        undo.undo()
        assert repr(undo) == f"<Undo of a write to {name}: not possible any more>"
        first = one.layers[1].ablate()
        both = first.joined(other.layers[1].ablate())
        assert repr(both) == f"<Undo of a write to {name} and {second}: possible>"
        assert repr(first) == "<Undo that is part of another>"


def test_positions_and_sessions_that_can_not_be_written_to() -> None:
    with _llm().session(PROMPT) as session:
        layer, state = session.layers[1], torch.zeros(64, 8)
        with pytest.raises(ValueError, match=r"position=20 should be 37"):
            layer.write("ssm_state", state, position=20)
        layer.write("ssm_state", state, position=37).undo()
        stream = session.stream(GREEDY)
        next(stream)
        with pytest.raises(ValueError, match="is generating"):
            layer.write("ssm_state", state)
        stream.close()
    with pytest.raises(ValueError, match="is closed"):
        layer.write("ssm_state", state)
    with _llm().session() as empty, pytest.raises(ValueError, match="has no tokens"):
        empty.layers[1].ablate()


_LLMS: list[LLM] = []


def _llm() -> LLM:
    if not _LLMS:
        _LLMS.append(open_llm(EVERY_KIND))
    return _LLMS[0]
