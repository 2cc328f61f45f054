"""The runner: runs the model on the rows of a step, and samples."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.batch_builder import BatchBuilder
from hybridrt.engine.held import HeldRun
from hybridrt.engine.logprobs import TokenText, logprob_columns, token_logprobs
from hybridrt.engine.sampler import SamplingRow, sample
from hybridrt.engine.scheduler import Row
from hybridrt.engine.sequence import Sequence
from hybridrt.engine.static_decode import StaticDecode
from hybridrt.kernels.sample import likeliest
from hybridrt.models.causal_lm import CausalLM
from hybridrt.request import TokenLogprobs
from hybridrt.transfer import HostCopy, to_device

T = TypeVar("T")

LOGITS_AT_ONCE = 256  # rows of prompt logits: bounds their memory at large vocabularies


class Draw(NamedTuple):
    """A next token, with its logprobs where they are wanted."""

    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a step gave for one row: the next token, and logprobs where they are wanted.

    `siblings` are the first tokens of the sequence's siblings.
    """

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    siblings: Rows[Draw] = ()
    prompt_logprobs: Rows[TokenLogprobs] = ()


Results = Callable[[], T]
"""What a launched step gives, once the device has done it: waits for that."""


class Runner:
    """Runs rows of tokens through a model whose layers are bound to the pool.

    Attributes:
        static_decode: what runs the batches that it takes; None: there is nothing faster.
        prepares_ahead: the next batch is prepared while the device is at work; on a CPU nothing is.
        launches_ahead: the next step may be launched as soon as its tokens are known.
    """

    def __init__(
        self,
        model: CausalLM,
        pages: SequencePages,
        groups: Rows[GroupPlan],
        device: torch.device,
        token_text: TokenText,
        eos_token_ids: tuple[int, ...],
        static_decode: StaticDecode | None = None,
    ) -> None:
        self._model = model
        self.batches = BatchBuilder(pages, groups, device, model.rope_switch_length)
        self._token_text = token_text
        self._eos_token_ids = eos_token_ids
        self.static_decode = static_decode
        self.prepares_ahead = device.type != "cpu"
        self.launches_ahead = self.prepares_ahead and static_decode is not None
        self._begun: tuple[ForwardBatch, Tensor] | None = None  # and the logits behind its rows

    def run(self, rows: list[Row]) -> list[RowResult]:
        """One step: every row's tokens go into the cache, and some rows get a next token."""
        return self.launch(rows)()

    @torch.inference_mode()
    def launch(self, rows: list[Row]) -> Results[list[RowResult]]:
        """The same, of which the device may have done nothing yet. The next is launched behind."""
        batch = self.batches.build(rows)
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is batch:
            return self._take_logits(rows, begun[1])
        static = self.static_decode
        if static is not None and static.takes(batch) and not _scores_prompts(rows, batch):
            return self._take_logits(rows, static.run(batch))
        return self._run_model(rows, batch)

    @torch.inference_mode()
    def begin_next(self, tokens: list[int] | None) -> bool:
        """Begins with the step behind the last one, which goes on with these tokens for certain.

        None: the device has them, the host not yet. It must be launched next, or everything start
        over: its states can't be taken back. Returns whether it has begun.
        """
        batch, decode = self.batches.take_ahead(tokens), self.static_decode
        if batch is None or decode is None or not decode.takes(batch):
            return False
        self._begun = batch, decode.run(batch)
        return True

    def forget_begun(self) -> None:
        """Everything starts over."""
        self._begun = None

    @torch.inference_mode()
    def run_eagerly(self, rows: list[Row]) -> list[RowResult]:
        """One step by the model's own modules, whatever is faster: hooks on them are called."""
        return self._run_model(rows, self.batches.build(rows))()

    def look_again(self) -> None:
        """Other code has run, which may have changed the model."""
        if self.static_decode is not None:
            self.static_decode.look_again()

    def _run_model(self, rows: list[Row], batch: ForwardBatch) -> Results[list[RowResult]]:
        self.look_again()
        hidden = self._model(batch)
        sampling = [i for i, row in enumerate(rows) if row.samples]
        sampled: Results[list[RowResult]] = list
        if sampling:
            logits = self._model.logits(hidden[batch.logits_indices])
            sampled = self._take_logits([rows[i] for i in sampling], logits)
        scores = self._score_prompts(hidden, batch, rows)

        def results() -> list[RowResult]:
            found = {i: RowResult() for i in range(len(rows))}
            found |= zip(sampling, sampled(), strict=True)
            found |= {i: replace(found[i], prompt_logprobs=of) for i, of in scores.items()}
            return [found[i] for i in range(len(rows))]

        return results

    @torch.inference_mode()
    def sample_from(self, logits: Float[Tensor, " vocab"], row: Row) -> RowResult:
        """The next token of a row behind which the logits are known: no forward."""
        return self._sample(logits[None], [row])()[0]

    def _take_logits(
        self, rows: Rows[Row], logits: Float[Tensor, "rows vocab"]
    ) -> Results[list[RowResult]]:
        """The next token of every row, and the logits for those that keep them."""
        _keep_logits(rows, logits)
        return self._sample(logits, rows)

    def _sample(
        self, logits: Float[Tensor, "rows vocab"], rows: Rows[Row]
    ) -> Results[list[RowResult]]:
        """The next token of every row, and the first of siblings that begin behind it."""
        if not any(row.sequence.siblings for row in rows):
            drawn = self._draw(logits, [row.sequence for row in rows])
            return lambda: [RowResult(*draw) for draw in drawn()]
        families = [[row.sequence, *row.sequence.siblings] for row in rows]
        row_of = [i for i, family in enumerate(families) for _ in family]
        logits = logits[to_device(torch.tensor(row_of), logits.device)]
        of_all = self._draw(logits, [one for family in families for one in family])

        def results() -> list[RowResult]:
            draws = iter(of_all())
            return [
                RowResult(*next(draws), siblings=tuple(islice(draws, len(family) - 1)))
                for family in families
            ]

        return results

    def _draw(
        self, logits: Float[Tensor, "rows vocab"], sequences: Rows[Sequence]
    ) -> Results[list[Draw]]:
        chosen = self._choose(logits, sequences)
        wanted = [n for n, sequence in enumerate(sequences) if sequence.logprobs is not None]
        counts = [sequences[n].params.logprobs or 0 for n in wanted]
        columns: Iterable[Tensor] = ()
        if wanted:
            index = to_device(torch.tensor(wanted), logits.device)
            columns = logprob_columns(logits[index], chosen[index], max(counts))
        copies = HostCopy(chosen, *columns)
        self._prepare_next(sequences, chosen)

        def draws() -> list[Draw]:
            tokens, *columns = copies.wait()
            entries = token_logprobs(columns, counts, self._token_text) if wanted else []
            logprobs = dict(zip(wanted, entries, strict=True))
            return [Draw(token, logprobs.get(n)) for n, token in enumerate(tokens.tolist())]

        return draws

    def _choose(
        self, logits: Float[Tensor, "rows vocab"], sequences: Rows[Sequence]
    ) -> Int64[Tensor, " rows"]:
        if all([sequence.takes_likeliest for sequence in sequences]):
            return likeliest(logits)
        return sample(logits, [self._sampling_row(sequence) for sequence in sequences])

    def _prepare_next(self, sequences: Rows[Sequence], chosen: Int64[Tensor, " sequences"]) -> None:
        """While the device is at work: what the next step needs.

        It is of use if the same sequences go on, and is thrown away if not.
        """
        batch = self.batches.move_ahead(sequences, chosen) if self.prepares_ahead else None
        if batch is not None and self.static_decode is not None:
            self.static_decode.prepare(batch)

    def _sampling_row(self, sequence: Sequence) -> SamplingRow:
        params = sequence.params
        early = sequence.num_output_tokens < params.min_tokens
        eos = () if params.ignore_eos else self._eos_token_ids
        return SamplingRow(
            params=params,
            prompt_token_ids=sequence.request.prompt_token_ids if params.penalises else (),
            output_token_ids=sequence.output_token_ids if params.penalises else (),
            banned=(*eos, *params.stop_token_ids) if early else (),
            seed=sequence.seed,
            position=sequence.num_output_tokens,
        )

    def _score_prompts(
        self, hidden: Tensor, batch: ForwardBatch, rows: Rows[Row]
    ) -> dict[int, list[TokenLogprobs]]:
        """Logprobs of prompt tokens, by rows: that of token i stands behind token i - 1."""
        found: dict[int, list[TokenLogprobs]] = {}
        end = 0
        for i, row in enumerate(rows):
            begin, end = end, end + row.num_tokens
            first = row.sequence.next_prompt_logprob
            last = min(row.stop, row.sequence.num_prompt_tokens - 1)
            if first is None or first - 1 >= last:
                continue
            assert first - 1 >= row.start, "earlier prompt logprobs were lost"
            states = hidden[begin + first - 1 - row.start : begin + last - row.start]
            tokens = row.sequence.token_ids[first : last + 1]
            found[i] = self._score(states, tokens, row.sequence.params.prompt_logprobs or 0)
        return found

    def _score(self, hidden: Tensor, tokens: Rows[int], num_top: int) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        for start in range(0, len(tokens), LOGITS_AT_ONCE):
            part = slice(start, start + LOGITS_AT_ONCE)
            chosen = to_device(torch.tensor(tokens[part]), hidden.device)
            columns = logprob_columns(self._model.logits(hidden[part]), chosen, num_top)
            counts = [num_top] * len(chosen)
            entries += token_logprobs(HostCopy(*columns).wait(), counts, self._token_text)
        return entries


def _scores_prompts(rows: Rows[Row], batch: ForwardBatch) -> bool:
    """Whether logprobs of prompts are wanted, which need more than the logits behind rows."""
    if batch.num_decodes == len(rows):
        return False
    return any(row.sequence.next_prompt_logprob is not None for row in rows)


def _keep_logits(rows: Rows[Row], logits: Float[Tensor, "rows vocab"]) -> None:
    """Gives sequences that are held the logits behind their last token."""
    for index, row in enumerate(rows):
        if isinstance(row.sequence, HeldRun):
            row.sequence.know(row.stop, logits[index])
