"""Steps on a CPU from tapes, decodes and short prompts: kernel after kernel, no Python between."""

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.plan import GroupPlan
from hybridrt.engine.module_changes import ModuleParts
from hybridrt.engine.static_decode import StaticBatches, StaticDecode, decode_step
from hybridrt.engine.static_prompts import PromptShape, StaticPrompts
from hybridrt.engine.tapes import Shape, Step, Tapes
from hybridrt.kernels.op import is_observed
from hybridrt.kernels.tape_memory import TapeMemory
from hybridrt.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)

MOST_ROWS = 256  # for each number of them a batch is made when the engine is
MOST_TOKENS = 512  # of a prompt: of more, Python takes a few hundredths of the time


class TapedDecode(StaticDecode):
    """Runs batches of decodes from a tape for each number of rows, none of them padding.

    And a prompt alone from a tape for each padded size. A tape is recorded when a number of rows,
    or a size, comes up for the second time. If one has a flaw, such steps of this model go on as
    without this. If a module or what it holds is replaced, all begins anew.
    """

    def __init__(
        self, model: CausalLM, groups: Sequence[GroupPlan], max_num_seqs: int, max_model_len: int
    ) -> None:
        sizes = range(1, min(max_num_seqs, MOST_ROWS) + 1)
        switches = model.rope_switch_length is not None
        cpu = torch.device("cpu")
        batches = StaticBatches(groups, sizes, max_model_len, cpu, switches_rope=switches)
        super().__init__(batches, self._decode)
        self.prompts = StaticPrompts(groups, MOST_TOKENS, max_model_len, switches_rope=switches)
        self._model = model
        self._plain, self._plain_prompt = decode_step(model), _prompt_step(model)
        self._looked = False  # at the modules, since other code than tapes ran
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._parts, memory = ModuleParts(self._model), TapeMemory()
        self.decode_tapes = Tapes[int](self._plain, memory, self.batches.tables)
        # A kernel may read how long a context is, and no more than that.
        self.prompt_tapes = {
            starts_anew: Tapes[PromptShape](self._plain_prompt, memory, self.prompts.tables)
            for starts_anew in (True, False)
        }

    def takes(self, batch: ForwardBatch) -> bool:
        tapes = self.decode_tapes if batch.num_decodes else self.prompt_tapes[batch.starts_anew]
        holder = super() if batch.num_decodes else self.prompts
        if tapes.flaw is not None or not holder.takes(batch):
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
        if not batch.num_decodes:
            return self._prompt(batch)
        if self.decode_tapes.is_new(batch.num_rows):
            self.look_again()
            return self._plain(batch)
        return super().run(batch)

    def _decode(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        logits = self.decode_tapes.replay(batch.num_rows)
        if logits is None:
            logits = self._record(self.decode_tapes, batch.num_rows, batch, "decode steps")
        return logits

    def _prompt(self, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        shape, tapes = self.prompts.shape_of(batch), self.prompt_tapes[batch.starts_anew]
        if tapes.is_new(shape):
            self.look_again()
            return self._plain_prompt(batch)
        batch = self.prompts.filled(batch)
        logits = tapes.replay(shape)
        if logits is None:
            what = "prompts" if batch.starts_anew else "prompts with a context"
            logits = self._record(tapes, shape, batch, what)
        return logits

    def _record(
        self, tapes: Tapes[Shape], shape: Shape, batch: ForwardBatch, what: str
    ) -> Float[Tensor, "rows vocab"]:
        logits = tapes.record(shape, batch)
        self.look_again()
        if tapes.flaw is not None:
            logger.info("%s can't be recorded: %s", what, tapes.flaw)
        return logits


def _prompt_step(model: CausalLM) -> Step:
    def step(batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        return model.logits(model(batch)[batch.logits_indices])

    return step
