"""A model that stores what it is given, and says what it finds: no arithmetic to hide errors.

A layer of tokens writes for each token its id, its position and the layer's number. A
layer of states keeps how many tokens it has seen and a hash of them all, which starts
from the layer's number. The model knows nothing but the `ForwardBatch` and its rows of
the pool, so whatever it finds came through page tables, slots and state pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hybridrt.batch import ForwardBatch, Rows, TokenPages
from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import CacheSpec, State, Window
from tests.cache.stand_ins import StandIn

VOCAB = 1009
_MODULUS = 2**31 - 1


def token_layer(block: int, window: Window | None = None, spare: int = 0) -> StandIn:
    """Keeps `[token, position, layer]`, and `spare` numbers more to be of another size."""
    kind = "window" if window else "full"
    states = (State("content", (block, 3 + spare), torch.int32),)
    return StandIn(CacheSpec(kind, states, block, window))


def state_layer(spare: int = 0) -> StandIn:
    """Keeps `[tokens seen, hash]` behind `spare` numbers of an odd size."""
    state = State("state", (2,), torch.int64)
    spares = (State("spare", (spare,), torch.uint8),) if spare else ()
    return StandIn(CacheSpec("state", (*spares, state)))


def seed_of(layer: int) -> int:
    return 17 + layer


def mixed(value: int, token: int, position: int) -> int:
    """The hash with one more token."""
    return (value * 31 + token + 7 * position + 1) % _MODULUS


def weighed(tokens: np.ndarray, first: int) -> int:
    """A number that depends on each of the tokens and on where they stand."""
    return int((tokens * (np.arange(first, first + len(tokens)) % 31 + 1)).sum())


@dataclass
class Reading:
    """What one row of a step found: by layer, the first token that it sees and all from there
    on, and the state before and after.
    """

    samples: bool = False  # whether logits are wanted of the last token
    next_token: int = 0
    tokens: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    states: dict[int, tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)


class ContentModel:
    """Layers over a pool. `run` is a step, `read` looks into the pages of one sequence."""

    def __init__(self, layers: Sequence[StandIn], plan: CachePlan, pool: Pool) -> None:
        self.rows = plan.layers
        self.groups = {group.name: group for group in plan.groups}
        self._views = [
            layer.cache_spec.unpack(pool.layer_pages(row))[-1].numpy()
            for layer, row in zip(layers, plan.layers, strict=True)
        ]

    def run(self, batch: ForwardBatch, num_layers: int | None = None) -> list[Reading]:
        """Runs the first layers, all of them if not told otherwise: what each row found."""
        assert batch.cu_seqlens_q.diff().tolist() == batch.query_lens.tolist()
        last, wanted = batch.cu_seqlens_q[1:] - 1, batch.logits_indices
        assert torch.isin(wanted, last).all()
        readings = [Reading(samples) for samples in torch.isin(last, wanted).tolist()]
        for row in self.rows[:num_layers]:
            group = self.groups[row.group]
            if group.kind == "state":
                self._run_state(row, batch, readings)
            else:
                self._run_tokens(row, group, batch, readings)
        return readings

    def read_tokens(
        self, layer: int, blocks: np.ndarray, first: int, stop: int, skipped: int
    ) -> np.ndarray:
        """Tokens `first` to `stop - 1` as a layer has them; `blocks` begins behind `skipped`."""
        view = self._views[layer]
        positions = np.arange(first, stop)
        block, offset = np.divmod(positions, view.shape[1])
        content = view[blocks[block - skipped], offset]
        assert (content[:, 1] == positions).all(), "another position's"
        assert (content[:, 2] == layer).all(), "another layer's"
        return content[:, 0]

    def read_state(self, layer: int, page: int) -> tuple[int, int]:
        """How many tokens a state has seen, and their hash."""
        seen, value = self._views[layer][page].tolist()
        return seen, value

    def _run_tokens(
        self, row: LayerPlan, group: GroupPlan, batch: ForwardBatch, readings: list[Reading]
    ) -> None:
        pages = batch.token_pages(row.group)
        self._write(row.index, batch, pages)
        for i, first, stop in _visible(batch, row.window):
            size = group.kernel_block_size
            assert size is not None
            table = pages.page_table[i].numpy()
            skipped = 0 if row.window is None else first // size
            tokens = self.read_tokens(row.index, table, first, stop, skipped)
            readings[i].tokens[row.index] = first, tokens
            seen = 0 if row.window is None else row.window.first_visible(stop - 1)
            readings[i].next_token += weighed(tokens[seen - first :], seen)

    def _write(self, layer: int, batch: ForwardBatch, pages: TokenPages) -> None:
        view, slots = self._views[layer], pages.slots.numpy()
        written = slots >= 0
        assert len(set(slots[written].tolist())) == written.sum(), "two tokens in one slot"
        content = np.stack([batch.input_ids.numpy(), batch.positions.numpy()], axis=1)[written]
        blocks, offsets = np.divmod(slots[written], view.shape[1])
        view[blocks, offsets, :2] = content
        view[blocks, offsets, 2] = layer

    def _run_state(self, row: LayerPlan, batch: ForwardBatch, readings: list[Reading]) -> None:
        rows = batch.for_states
        pages = batch.state_pages(row.group, row.part).tolist()
        initial = batch.initial_state_pages(row.group, row.part).tolist()
        bounds, owners = rows.cu_seqlens_q.tolist(), _owners(batch)
        _assert_states_are_apart(pages, initial, owners, rows)
        tokens, positions = batch.input_ids.tolist(), batch.positions.tolist()
        has_state = rows.has_initial_state.tolist()
        for i, page in enumerate(pages):
            start = self.read_state(row.index, initial[i]) if has_state[i] else None
            before = (0, seed_of(row.index)) if start is None else start
            seen, value = before
            for t in range(bounds[i], bounds[i + 1]):
                seen, value = seen + 1, mixed(value, tokens[t], positions[t])
            self._views[row.index][page] = (seen, value)
            reading = readings[owners[i]]
            first, _ = reading.states.get(row.index, (before, None))
            reading.states[row.index] = first, (seen, value)
        for reading in readings:
            reading.next_token += reading.states[row.index][1][1]


def _owners(batch: ForwardBatch) -> list[int]:
    """For each row of the states, the row of the batch that it is a part of."""
    starts = batch.for_states.cu_seqlens_q[:-1]
    return (torch.searchsorted(batch.cu_seqlens_q, starts, right=True) - 1).tolist()


def _assert_states_are_apart(
    pages: list[int], initial: list[int], owners: list[int], rows: Rows
) -> None:
    """Nobody writes what another writes or starts from; rows that follow go on where they are."""
    assert len(set(pages)) == len(pages), "two sequences have one state"
    writers = dict(zip(pages, owners, strict=True))
    follows = rows.follows.tolist()
    for i, (page, start) in enumerate(zip(pages, initial, strict=True)):
        if follows[i]:
            assert start == pages[i - 1] and owners[i] == owners[i - 1] and i > rows.num_decodes
        elif i < rows.num_decodes:
            assert start == page and rows.query_lens[i] == 1
        else:
            assert writers.get(start, owners[i]) == owners[i], "another writes where it starts"


def _visible(batch: ForwardBatch, window: Window | None) -> Iterator[tuple[int, int, int]]:
    """For each row: its number, the first token that its new ones see, and where they end."""
    contexts, stops = batch.context_lens.tolist(), batch.seq_lens.tolist()
    for i, (context, stop) in enumerate(zip(contexts, stops, strict=True)):
        yield i, 0 if window is None else window.first_visible(context), stop
