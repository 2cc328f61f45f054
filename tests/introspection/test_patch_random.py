"""Writes among everything else that sessions do: as in an engine that shares nothing."""

from random import Random

import pytest
import torch

from hybridrt import LLM
from hybridrt.introspection.patch import Undo
from hybridrt.session import Session
from tests.session.open_sessions import (
    EVERY_KIND,
    EVERY_STATE,
    GREEDY,
    PROMPT,
    cold,
    nothing_left,
    open_llm,
)

Pair = tuple[Session, Session]
"""One session in an engine that shares all it can, and its like in one that shares nothing."""


class Play:
    """The same moves in both engines, drawn by chance."""

    def __init__(self, name: str, shared: LLM, apart: LLM, seed: int) -> None:
        self.name = name
        self.llms = shared, apart
        self.chance = Random(seed)
        self.sessions: list[Pair] = []
        self.undos: list[tuple[Pair, tuple[Undo, Undo]]] = []

    def open(self) -> None:
        tokens = PROMPT[: self.chance.randrange(5, 30)]
        first, second = (llm.session(tokens) for llm in self.llms)
        self.sessions.append((first, second))

    def fork(self) -> None:
        first, second = self.chance.choice(self.sessions)
        self.sessions.append((first.fork(), second.fork()))

    def append(self) -> None:
        tokens = [self.chance.randrange(3, 60) for _ in range(self.chance.randrange(1, 9))]
        for session in self.chance.choice(self.sessions):
            session.append(tokens)

    def generate(self) -> None:
        first, second = self.chance.choice(self.sessions)
        ids = [one.generate(GREEDY).outputs[0].token_ids for one in (first, second)]
        assert ids[0] == ids[1]

    def write(self) -> None:
        pair = self.chance.choice(self.sessions)
        index, seed = self.chance.randrange(len(pair[0].layers)), self.chance.randrange(99)
        undos: list[Undo] = []
        for session in pair:
            layer = session.layers[index]
            values = {n: x for n, x in layer.read().items() if n != "positions" and x.numel()}
            tokens = None if layer.kind == "state" else slice(-1, None)
            generator = torch.Generator().manual_seed(seed)
            for name, x in values.items():
                last = x if tokens is None else x[-1:]
                values[name] = torch.randn(last.shape, generator=generator)
            if values and "entries" not in values:
                undos.append(layer.write(values, tokens=tokens))
            elif values:
                undos.append(layer.ablate())
        if undos:
            self.undos.append((pair, (undos[0], undos[1])))

    def undo(self) -> None:
        if self.undos:
            _, undos = self.undos.pop(self.chance.randrange(len(self.undos)))
            assert undos[0].possible == undos[1].possible
            for undo in undos if undos[0].possible else ():
                undo.undo()

    def forget(self) -> None:
        if self.undos:
            self.undos.pop(self.chance.randrange(len(self.undos)))

    def others(self) -> None:
        tokens = [*PROMPT[: self.chance.randrange(5, 30)], self.chance.randrange(3, 60)]
        (output,) = self.llms[0].generate([tokens], GREEDY)
        assert output.outputs[0].token_ids == cold(self.name, tokens, GREEDY)

    def close(self) -> None:
        if len(self.sessions) > 1:
            for session in self.sessions.pop(self.chance.randrange(len(self.sessions))):
                session.close()

    def check(self) -> None:
        for first, second in self.sessions:
            assert first.token_ids == second.token_ids
            assert first.was_written_to == second.was_written_to
            torch.testing.assert_close(first.logits, second.logits, rtol=1e-3, atol=1e-3)


MOVES = (
    "open",
    "fork",
    "append",
    "generate",
    "write",
    "write",
    "undo",
    "forget",
    "others",
    "close",
)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_writes_among_everything_else(name: str, seed: int) -> None:
    shared = open_llm(name, cache_memory="4MiB")
    apart = open_llm(name, cache_memory="16MiB", enable_prefix_caching=False)
    play = Play(name, shared, apart, seed)
    with nothing_left(shared), nothing_left(apart):
        play.open()
        for _ in range(30):
            move = play.chance.choice(MOVES)
            longest = max(session.num_tokens for session, _ in play.sessions)
            if longest > 80 and move in ("append", "generate"):
                move = "close"
            getattr(play, move)()
        play.check()
        for pair in play.sessions:
            for session in pair:
                session.close()
