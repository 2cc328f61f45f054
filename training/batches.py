"""What the demo model is trained on: texts, and which layers remember in which row.

In some rows only certain kinds of layers remember. There they must answer the
questions that are their duty, and `?` stands for every digit of the answers that
are not. So every kind of layer gets a duty that no other takes over, and the
checkpoint depends on every kind of cache.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hybridrt.demo.facts import CLOCKS, KINDS, kind_of, training_text
from training.demo_model import LAYER_TYPES

# What a token counts that can't be foretold, or hardly: enough to learn how lines look.
TEXT_WEIGHT = 0.02
UNKNOWN_WEIGHT = 0.5
CLOCK_WEIGHT = 4.0
DIGIT_WEIGHTS = (2.0, 1.0, 1.0)


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    steps: int
    tokens: int
    rows: int
    whole: float
    """The share of rows in which all layers remember."""
    duties: bool
    """Whether layers learn to say that they do not know what is another's duty."""
    mixed: bool
    """Whether several kinds of layers, not one only, remember in the other rows."""
    late: float = 0.0
    """The share of rows in which clocks are asked for long after they were stated."""


STAGES = (
    Stage(650, 96, 48, 0.0, False, False),
    Stage(600, 256, 20, 0.1, True, False),
    Stage(550, 576, 10, 0.4, True, False),
    Stage(1300, 576, 10, 0.4, True, True),
    Stage(700, 576, 10, 0.4, True, True, 0.7),
)
TOTAL_STEPS = sum(stage.steps for stage in STAGES)


@dataclass(frozen=True)
class Batch:
    """Token ids `[rows, tokens]`, what counts as a target, and which layers remember."""

    ids: Tensor
    known: Tensor
    """How much the true next token counts, at each position."""
    unknown: Tensor
    """How much it counts there that the next token is `?`: not known."""
    memory: Tensor
    """`[layers, rows]`: 1 where a layer remembers."""
    kinds: Tensor
    """The index in `KINDS` of what is to be known, at its question mark; elsewhere -1."""
    rows: list[tuple[str, ...]]
    """Which kinds of layers remember in each row."""


def stage_at(step: int) -> Stage:
    """The stage that a step belongs to."""
    for stage in STAGES:
        if step < stage.steps:
            return stage
        step -= stage.steps
    raise ValueError(f"step is {step} steps after the last of {TOTAL_STEPS}")


def encode(text: str) -> np.ndarray:
    """Bytes as token ids."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def make_batch(rng: random.Random, stage: Stage) -> Batch:
    """Random texts of one stage."""
    rows = remembering(rng, stage)
    ids = np.stack([encode(text_for(row, rng, stage)) for row in rows])
    kinds = asked_kinds(ids)
    duty = np.array([[kind in duties_of(row, stage) for kind in (*KINDS, "")] for row in rows])
    mine = (kinds >= 0) & np.take_along_axis(duty, kinds, axis=1)
    others = (kinds >= 0) & ~mine
    # Clocks are asked for less often than names, and are learned last.
    share = np.where(kinds >= KINDS.index("mamba1"), CLOCK_WEIGHT, 1.0)
    known = np.full(ids.shape, TEXT_WEIGHT)
    unknown = np.zeros(ids.shape)
    for digit, weight in enumerate(DIGIT_WEIGHTS):
        asked, at = np.s_[:, : ids.shape[1] - digit], np.s_[:, digit:]
        known[at] = np.where(mine[asked], weight * share[asked], known[at])
        known[at] = np.where(others[asked], 0.0, known[at])
        unknown[at] = np.where(others[asked] & stage.duties, UNKNOWN_WEIGHT, unknown[at])
    memory = [[float(kind in row) for row in rows] for kind in LAYER_TYPES]
    return Batch(
        ids=torch.from_numpy(ids),
        known=torch.from_numpy(known).float(),
        unknown=torch.from_numpy(unknown).float(),
        memory=torch.tensor(memory),
        kinds=torch.from_numpy(np.where(mine, kinds, -1)),
        rows=rows,
    )


def remembering(rng: random.Random, stage: Stage) -> list[tuple[str, ...]]:
    """The kinds of layers that remember, for each row."""
    shift = rng.randrange(len(KINDS))
    rows = []
    for row in range(stage.rows):
        one = KINDS[(row + shift) % len(KINDS)]
        also = [kind == one or (stage.mixed and rng.random() < 0.5) for kind in KINDS]
        whole = rng.random() < stage.whole
        rows.append(tuple(kind for kind, on in zip(KINDS, also, strict=True) if on or whole))
    return rows


def text_for(row: tuple[str, ...], rng: random.Random, stage: Stage) -> str:
    """A random text for a row."""
    clock = clock_of(row, rng)
    return training_text(rng, stage.tokens, clock, late=rng.random() < stage.late)


def clock_of(row: tuple[str, ...], rng: random.Random) -> str:
    """What the text of a row is about: the clock that it remembers, if that is all."""
    if len(row) == 1:
        return next((clock for clock, kind in CLOCKS.items() if kind in row), "")
    return rng.choice(("", *CLOCKS))


def duties_of(row: tuple[str, ...], stage: Stage) -> tuple[str, ...]:
    """The kinds of questions to be answered in a row.

    Before duties are dealt out, attention and MLA learn from all questions.
    """
    if not stage.duties and row[0] not in CLOCKS.values():
        return KINDS
    return row


def asked_kinds(ids: np.ndarray) -> np.ndarray:
    """For every `?`: the index in `KINDS` of the name before it; elsewhere -1."""
    kinds = np.full(ids.shape, -1)
    for row, position in zip(*np.nonzero(ids == ord("?")), strict=True):
        name = bytes(ids[row, position - 3 : position].tolist()).decode()
        kinds[row, position] = KINDS.index(kind_of(name))
    return kinds
