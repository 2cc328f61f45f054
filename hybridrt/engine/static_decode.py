"""Decode steps of fixed shapes: batches padded to a few sizes, in tensors that don't move.

What is compiled for shapes, or captured with addresses, serves every step of a size.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch, StatePages, TokenPages
from hybridrt.cache.plan import GroupPlan
from hybridrt.models.causal_lm import CausalLM

DecodeStep = Callable[[ForwardBatch], Float[Tensor, "rows vocab"]]
"""A batch of decodes through a model: the logits behind each row's token."""

NO_PLACE = -1  # a slot that nobody writes, a state's page that nobody has


def batch_sizes(most_rows: int) -> list[int]:
    """Sizes that batches are padded to: 1, 2, 4, 8, multiples of 8 to 64, of 16 beyond."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, most_rows + 16, 16)]
    fitting = [*takewhile(lambda size: size < most_rows, sizes)]
    return [*fitting, most_rows]


def decode_step(model: CausalLM) -> DecodeStep:
    """The model's own step: no compiler, no graph."""

    def step(batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        return model.logits(model(batch))

    return step


class StaticBatches:
    """A batch of decodes of each size, `sizes` in order, all on the same tensors.

    Rows behind those of a step are padding: token 0 at position 0, without a slot and without
    a page for states, so that nothing is written for them. Page tables are as wide as the
    longest sequence's.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        sizes: Sequence[int],
        max_model_len: int,
        device: torch.device,
        *,
        switches_rope: bool,
    ) -> None:
        self.sizes = tuple(sizes)
        most = sizes[-1]
        self._device = device
        self._input_ids = self._zeros(most, torch.int64)
        self._positions = self._zeros(most, torch.int64)
        self._rope_positions = self._positions
        if switches_rope:
            self._rope_positions = self._zeros(most, torch.int64)
        self._seq_lens = self._zeros(most, torch.int32) + 1
        self._context_lens = torch.zeros(most, dtype=torch.int64)
        self._tables: dict[str, Tensor] = {}
        self._places: dict[str, Tensor] = {}  # slots, or for each part the pages of states
        for group in groups:
            if group.kernel_block_size is None:
                pages = self._zeros((group.parts, most), torch.int64)
                self._places[group.name] = pages + NO_PLACE
                continue
            width = table_width(group, max_model_len)
            self._tables[group.name] = self._zeros((most, width), torch.int32)
            self._places[group.name] = self._zeros(most, torch.int64) + NO_PLACE
        self._batches = {size: self._batch(size) for size in sizes}
        rows = range(most + 1)
        self._size_for = [next(size for size in self.sizes if size >= n) for n in rows]
        self._filled: ForwardBatch | None = None  # from which, and what of it moves on in place
        self._copies: list[tuple[Any, Any]] = []

    @property
    def tables(self) -> list[Tensor]:
        """The page tables of all groups."""
        return [*self._tables.values()]

    def of(self, size: int) -> ForwardBatch:
        """The batch of that many rows, with what was filled in last."""
        return self._batches[size]

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether all rows are decodes behind which a token is sampled, and not too many."""
        n = batch.num_rows
        samples_all = batch.num_decodes == len(batch.logits_indices) == n
        return samples_all and batch.cut_rows is None and n <= self.sizes[-1]

    def smallest(self, batch: ForwardBatch) -> ForwardBatch:
        """The smallest batch that has room for these rows."""
        return self._batches[self._size_for[batch.num_rows]]

    def fill_tokens(self) -> None:
        """Writes the tokens of the batch of which `fill_rest` wrote the rest last."""
        into, given = self._copies[0]
        into[...] = given

    def fill_rest(self, batch: ForwardBatch) -> None:
        """Writes where these rows stand and keep what into the smallest batch with room for them.

        A batch that was moved on since it was filled in last has the same rows and tensors.
        """
        if batch is not self._filled:
            self._begin(batch)
            self._filled = batch
        for into, given in self._copies[1:]:
            into[...] = given

    def _begin(self, batch: ForwardBatch) -> None:
        """Writes padding, and what stays while a batch moves on; notes what is to be copied."""
        n, size = batch.num_rows, self._size_for[batch.num_rows]
        parts = [
            (self._input_ids, batch.input_ids, 0),
            (self._positions, batch.positions, 0),
            (self._seq_lens, batch.seq_lens, 1),
            (self._context_lens, batch.context_lens, 0),
        ]
        if self._rope_positions is not self._positions:
            parts.append((self._rope_positions, batch.rope_positions, 0))
        for name, places in self._places.items():
            placed = batch.groups[name]
            if isinstance(placed, StatePages):
                places[:, :n] = placed.pages
                places[:, n:size] = NO_PLACE
                continue
            parts.append((places, placed.slots, NO_PLACE))
            table = self._tables[name]
            width = min(table.shape[1], placed.page_table.shape[1])
            table[:size].zero_()
            parts.append((table[:, :width], placed.page_table[:, :width], 0))
        self._copies = []
        for into, given, padding in parts:
            into[n:size] = padding
            self._copies.append((_in_place(into[:n]), _in_place(given)))

    def _batch(self, size: int) -> ForwardBatch:
        groups: dict[str, TokenPages | StatePages] = {}
        for name, places in self._places.items():
            if name in self._tables:
                groups[name] = TokenPages(self._tables[name][:size], places[:size])
            else:
                groups[name] = StatePages(pages := places[:, :size], initial_pages=pages)
        positions = self._positions[:size]
        switches = self._rope_positions is not self._positions
        return ForwardBatch(
            input_ids=self._input_ids[:size],
            positions=positions,
            rope_positions=self._rope_positions[:size] if switches else positions,
            seq_lens=self._seq_lens[:size],
            cu_seqlens_q=torch.arange(size + 1, dtype=torch.int32, device=self._device),
            has_initial_state=torch.ones(size, dtype=torch.bool, device=self._device),
            logits_indices=torch.arange(size, device=self._device),
            groups=groups,
            num_decodes=size,
            starts_anew=False,
            query_lens=torch.ones(size, dtype=torch.int64),
            context_lens=self._context_lens[:size],
            follows=torch.zeros(size, dtype=torch.bool),
        )

    def _zeros(self, shape: int | tuple[int, int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)


class StaticDecode:
    """Runs batches of decodes, padded, by a step that takes no other shapes."""

    def __init__(self, batches: StaticBatches, step: DecodeStep) -> None:
        self.batches = batches
        self._step = step
        self._prepared: ForwardBatch | None = None

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether `run` can have that batch; see `StaticBatches`."""
        return self.batches.takes(batch)

    def look_again(self) -> None:
        """Other code has run since the last batch, which may have changed the model."""

    def run(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        """The logits behind every row, valid until the next step."""
        if self._prepared is not batch:
            self.batches.fill_rest(batch)
        self._prepared = None
        self.batches.fill_tokens()
        logits = self._step(self.batches.smallest(batch))
        return logits if len(logits) == batch.num_rows else logits[: batch.num_rows]

    def prepare(self, batch: ForwardBatch) -> None:
        """Takes all of the next batch but its tokens, once the step before it is launched."""
        if self.takes(batch):
            self.batches.fill_rest(batch)
            self._prepared = batch


def table_width(group: GroupPlan, max_model_len: int, tokens: int = 1) -> int:
    """Kernel blocks from that of the first token that some new tokens see to their own, at most."""
    size = group.kernel_block_size
    assert size is not None
    blocks = -(-max_model_len // size)
    if group.window is None:
        return blocks
    return min(blocks, -(-(group.window.size + tokens - 1) // size) + 1)


def _in_place(tensor: Tensor) -> Any:
    """The tensor, or the same memory for numpy, which copies a few numbers in less time."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor
