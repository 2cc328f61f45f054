"""Decode steps on a CPU from tapes: kernel after kernel, without Python code between."""

import logging
from collections import OrderedDict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.plan import GroupPlan
from hybridrt.engine.module_changes import ModuleParts
from hybridrt.engine.static_decode import StaticBatches, StaticDecode, decode_step
from hybridrt.kernels.op import is_observed
from hybridrt.kernels.tape import Tape, recorded
from hybridrt.kernels.tape_memory import TapeMemory
from hybridrt.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)

MOST_ROWS = 256  # for each number of them a batch is made when the engine is
MOST_TAPES = 64  # each is a list of calls, and what torch's own operations compute among them


class TapedDecode(StaticDecode):
    """Runs batches of decodes from a tape for each number of rows, none of them padding.

    A tape is recorded when a number of rows comes up for the second time, by a step that is
    computed as ever. If it has a flaw, steps of this model go on as without this. If a module or
    what it holds is replaced, all begins anew.
    """

    def __init__(
        self, model: CausalLM, groups: Sequence[GroupPlan], max_num_seqs: int, max_model_len: int
    ) -> None:
        sizes = range(1, min(max_num_seqs, MOST_ROWS) + 1)
        switches = model.rope_switch_length is not None
        cpu = torch.device("cpu")
        batches = StaticBatches(groups, sizes, max_model_len, cpu, switches_rope=switches)
        super().__init__(batches, self._from_tape)
        self.flaw: str | None = None
        self._model = model
        self._parts = ModuleParts(model)
        self._plain = decode_step(model)
        self._looked = False  # at the modules, since other code than tapes ran
        self._seen = set[int]()
        self._tapes = OrderedDict[int, tuple[Tape, Tensor]]()
        self._memory = TapeMemory()  # of all tapes: a step's logits are valid until the next one

    def takes(self, batch: ForwardBatch) -> bool:
        if self.flaw is not None or not super().takes(batch):
            return False
        if not self._looked:
            if not self._parts.are_the_same():
                self._begin_anew()
            # Hooks belong to calls of modules, and a compiler's graph is one: a tape makes none.
            parts = self._parts
            self._looked = not (parts.have_hooks or parts.is_compiled or is_observed())
        return self._looked

    def look_again(self) -> None:
        self._looked = False

    def run(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        if batch.num_rows not in self._seen:
            self._seen.add(batch.num_rows)
            self.look_again()
            return self._plain(batch)
        return super().run(batch)

    @property
    def num_calls(self) -> dict[int, int]:
        """Calls in the tape of each number of rows."""
        return {rows: len(tape) for rows, (tape, _) in self._tapes.items()}

    def _from_tape(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        found = self._tapes.get(batch.num_rows)
        if found is None:
            return self._record(batch)
        self._tapes.move_to_end(batch.num_rows)
        tape, logits = found
        tape.replay()
        return logits

    def _record(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        # Those are as wide as the longest sequence: kernels read what is there, torch all of it.
        with recorded(self.batches.tables, self._memory) as tape:
            logits = self._plain(batch)
        self.look_again()
        if tape.flaw is not None:
            self.flaw = tape.flaw
            logger.info("decode steps can't be recorded: %s", self.flaw)
            return logits
        self._tapes[batch.num_rows] = tape, self._memory.given_back(logits)
        if len(self._tapes) > MOST_TAPES:
            self._tapes.popitem(last=False)
        return logits

    def _begin_anew(self) -> None:
        self._parts = ModuleParts(self._model)
        self._seen.clear()
        self._tapes.clear()
        self._memory = TapeMemory()
