"""What a session's layer says of itself, its pages, and views of it."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from hybridrt.introspection.views import StaleView
from hybridrt.session import Session
from tests.harness.rows import OF_EACH_CACHE
from tests.session.open_sessions import (
    ATTENTION,
    COMPRESSED,
    EVERY_KIND,
    GREEDY,
    OTHER,
    PROMPT,
    open_llm,
)


def test_says_what_it_is() -> None:
    llm = open_llm(EVERY_KIND, kv_cache_dtype="fp8_e4m3")
    with llm.session(PROMPT) as session:
        _ = session.logits
        for index, (layer, plan) in enumerate(zip(session.layers, llm.plan.layers, strict=True)):
            names = (layer.index, layer.name, layer.kind, layer.mixer, layer.group)
            assert names == (index, plan.name, plan.kind, plan.mixer, plan.group)
            assert layer.bytes == len(layer.pages) * plan.bytes_per_page > 0
            assert f"{index} {plan.name}: {plan.mixer}" in repr(layer)
        assert session.layers[1].dtype == torch.float32
        assert session.layers[2].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("name", OF_EACH_CACHE)
def test_every_tensor_of_every_cache_has_names_for_its_axes(name: str) -> None:
    with open_llm(name).session(PROMPT[:9]) as session:
        for layer in session.layers:
            given = layer.read()
            assert given.axes == layer.axes and given.axes.keys() == given.keys()
            for key, tensor in given.items():
                axes = given.axes[key]
                assert len(axes) == tensor.dim() == len(set(axes)), (layer, key)
                assert layer.view()[key].shape == tensor.shape
                assert layer.view()[key].dtype == tensor.dtype


@pytest.mark.parametrize("block", [1, 2, 4])
def test_pages_are_where_the_pool_has_them(block: int) -> None:
    llm = open_llm(EVERY_KIND, kernel_block_size=block)
    pool = llm.engine.pool
    with llm.session(PROMPT) as session:
        _ = session.logits
        for layer in session.layers:
            group = llm.plan.group(layer.group)
            pages, given = layer.pages, layer.read()
            for page in pages:
                first = page.physical_id * group.blocks_per_page
                assert page.kernel_ids == tuple(range(first, first + group.blocks_per_page))
                assert page.slab == page.physical_id // group.pages_per_slab
                assert page.own and not page.shared and page.holders == 1
            if layer.kind == "state":
                assert [page.tokens for page in pages] == [range(len(PROMPT))]
                continue
            assert all(a.tokens.stop == b.tokens.start for a, b in pairwise(pages))
            assert pages[-1].tokens.stop == len(PROMPT)
            # Through the ids alone, the bytes of the first tensor of each page.
            blocks = pool.layer_pages(layer.plan)
            first = pages[0]
            raw = blocks[first.kernel_ids[0]]
            width = sum(given[n].shape[-1] for n in given if n != "positions")
            if layer.mixer == "attention":
                kv = raw.view(torch.float32)[: 2 * block * width].view(2, block, width)
                tokens = min(block, len(first.tokens))
                expected = torch.cat([given["k"], given["v"]], -1)[:tokens].transpose(0, 1)
                assert torch.equal(kv[:, :tokens], expected)


def test_shared_pages_say_how_many_hold_them() -> None:
    llm = open_llm(ATTENTION)
    with llm.session(PROMPT) as session, llm.session() as other:
        _ = session.logits
        with session.fork() as fork:
            *full, last = session.layers[0].pages
            assert {page.holders for page in full} == {2} and last.own
            assert all(page.shared for page in full)
            theirs = fork.layers[0].pages
            assert [p.physical_id for p in theirs[:-1]] == [p.physical_id for p in full]
            assert theirs[-1].physical_id != last.physical_id
            other.append(PROMPT)
            _ = other.logits
            assert {page.holders for page in full} == {2}
            assert {page.holders for page in session.layers[0].pages[:-1]} == {3}
        assert {page.holders for page in session.layers[0].pages[:-1]} == {2}


def test_keys_are_of_all_tokens_up_to_there() -> None:
    def keys(tokens: list[int], salt: str | None = None, caching: bool = True) -> list[str | None]:
        llm = open_llm(ATTENTION, enable_prefix_caching=caching)
        with llm.session(tokens, cache_salt=salt) as session:
            _ = session.logits
            return [page.key for page in session.layers[0].pages]

    own = keys(PROMPT)
    assert own[-1] is None and len(set(own)) == len(own) == 10
    longer = keys([*PROMPT, *OTHER])
    assert longer[:9] == own[:9] and longer[9] is not None
    changed = keys([*PROMPT[:12], 1, *PROMPT[13:]])
    assert changed[:3] == own[:3] and set(changed[3:9]).isdisjoint(own)
    assert set(keys(PROMPT, salt="mine")[:9]).isdisjoint(own)
    assert set(keys(PROMPT, caching=False)) == {None}


def test_before_the_first_token_there_are_no_pages() -> None:
    with open_llm(EVERY_KIND).session() as session:
        for layer in session.layers:
            assert layer.pages == () and layer.bytes == 0 and layer.checkpoint_positions == ()


@pytest.mark.parametrize("name", [EVERY_KIND, COMPRESSED])
def test_views_read_what_they_are_asked_for(name: str) -> None:
    with open_llm(name).session(PROMPT) as session:
        for layer in session.layers:
            view, whole = layer.view(), layer.read()
            assert [*view] == [*whole] and len(view) == len(whole)
            for key, tensor in whole.items():
                part = view[key]
                assert part.shape == tensor.shape and part.axes == layer.axes[key]
                assert torch.equal(part.read(), tensor)
                for index in (0, -1, slice(1, 4), slice(None, None, 2), [0, 2], ..., None):
                    assert torch.equal(part[index], tensor[index]), (key, index)
                if tensor.dim() > 1:
                    assert torch.equal(part[1:3, 0], tensor[1:3, 0])
                    assert torch.equal(part[..., 0], tensor[..., 0])
                part[0:2].zero_()
                assert torch.equal(part.read(), tensor), "what a view gives is a copy"
                with pytest.raises(TypeError, match="read only"):
                    part[0] = 1
                with pytest.raises(IndexError):
                    _ = part[len(tensor)]
            with pytest.raises(KeyError, match="nothing"):
                _ = view["nothing"]


MOVES: dict[str, Callable[[Session], object]] = {
    "append": lambda session: session.append([5]),
    "generate": lambda session: session.generate(GREEDY),
    "truncate": lambda session: session.truncate(30, recompute=True),
    "write": lambda session: session.layers[0].ablate(),
    "close": lambda session: session.close(),
    "lost pages": lambda session: session._engine._start_over(),
    "stream": lambda session: next(session.stream(GREEDY)),
}


@pytest.mark.parametrize("move", MOVES)
def test_views_are_of_no_use_once_the_session_has_moved_on(move: str) -> None:
    llm = open_llm(EVERY_KIND)
    with llm.session(PROMPT) as session:
        views = [layer.view() for layer in session.layers]
        parts = [next(iter(view.values())) for view in views]
        _ = session.logits, session.layers[0].read(), session.fork().close()
        llm.generate([OTHER], GREEDY)
        assert all(part[0] is not None for part in parts), "that didn't move it"
        done = MOVES[move](session)
        for part in parts:
            with pytest.raises(StaleView, match="session-0"):
                _ = part[0]
            with pytest.raises(StaleView, match="session-0"):
                part.read()
        del done


def test_a_view_from_before_a_write_that_was_undone_is_out_of_date_too() -> None:
    with open_llm(EVERY_KIND).session(PROMPT) as session:
        view = session.layers[1].view()
        with session.layers[1].ablate():
            inside = session.layers[1].view()
            assert not inside["ssm_state"].read().any()
        for stale in (view, inside):
            with pytest.raises(StaleView, match="moved on"):
                _ = stale["ssm_state"][0]
