"""The tapes of a model's steps, one for each shape of their batches."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.tape import Tape, recorded
from hybridrt.kernels.tape_memory import TapeMemory

MOST_TAPES = 64  # each is a list of calls, and what torch's own operations compute among them

Step = Callable[[ForwardBatch], Float[Tensor, "rows vocab"]]
"""A batch through a model: the logits behind each row that samples."""

Shape = TypeVar("Shape", bound=Hashable)


class Tapes(Generic[Shape]):
    """What a step computes for batches on tensors that don't move.

    A tape is recorded when a shape comes up for the second time, by a step that is computed as
    ever. After a flaw in one, none are.

    Attributes:
        flaw: why this model's steps can't be recorded; None: they can, as far as is known.
    """

    def __init__(self, step: Step, memory: TapeMemory, for_kernels: Iterable[Tensor]) -> None:
        self.flaw: str | None = None
        self._step = step
        self._memory = memory  # a step's logits are valid until the next one, of any tapes of it
        self._for_kernels = [*for_kernels]
        self._seen = set[Shape]()
        self._tapes = OrderedDict[Shape, tuple[Tape, Tensor]]()

    @property
    def num_calls(self) -> dict[Shape, int]:
        """Calls in the tape of each shape."""
        return {shape: len(tape) for shape, (tape, _) in self._tapes.items()}

    def is_new(self, shape: Shape) -> bool:
        """Whether that shape has not come up before. From now on it has."""
        if shape in self._seen:
            return False
        self._seen.add(shape)
        return True

    def replay(self, shape: Shape) -> Float[Tensor, "rows vocab"] | None:
        """The logits of what stands in the batch of that shape; None: there is no tape yet."""
        found = self._tapes.get(shape)
        if found is None:
            return None
        self._tapes.move_to_end(shape)
        tape, logits = found
        tape.replay()
        return logits

    def record(self, shape: Shape, batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        """The logits, and a tape for later ones if the step has no flaw."""
        # Those are as wide as the longest sequence: kernels read what is there, torch all of it.
        with recorded(self._for_kernels, self._memory) as tape:
            logits = self._step(batch)
        if tape.flaw is not None:
            self.flaw = tape.flaw
            return logits
        self._tapes[shape] = tape, self._memory.given_back(logits)
        if len(self._tapes) > MOST_TAPES:
            self._tapes.popitem(last=False)
        return logits
