"""Matrices of experts in the layout in which our own kernel reads them fastest."""

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.backend import numba_takes
from hybridrt.kernels.room import OF_ITS_OWN, Room

BLOCK = 64
"""Outputs in a block, as in oneDNN's own layout."""


class BlockedMatrices(nn.Module):
    """Stacked matrices of bfloat16 in blocks of `BLOCK` outputs, `[inputs / 2, BLOCK, 2]` each.

    So a product reads one run of memory, and pairs of inputs stand as a processor multiplies them.
    They stand in `room`.
    """

    def __init__(
        self, stacked: Float[Tensor, "experts outputs inputs"], room: Room = OF_ITS_OWN
    ) -> None:
        super().__init__()
        experts, self.outputs, self.inputs = stacked.shape
        pairs = stacked.detach().view(experts, self.outputs // BLOCK, BLOCK, self.inputs // 2, 2)
        pairs = pairs.transpose(2, 3)
        blocks = room.new_empty(stacked, *pairs.shape).copy_(pairs)
        self.blocks = nn.Parameter(blocks, requires_grad=False)

    def __len__(self) -> int:
        return len(self.blocks)

    def plain(self) -> Float[Tensor, "experts outputs inputs"]:
        """A copy of the matrices as they were."""
        return self.blocks.transpose(2, 3).reshape(len(self), self.outputs, self.inputs)


def can_block(*stacked: Float[Tensor, "experts _ _"]) -> bool:
    """Whether these are whole blocks, of numbers that our kernel multiplies here."""
    if not numba_takes(*stacked) or any(size % BLOCK for s in stacked for size in s.shape[1:]):
        return False
    from hybridrt.kernels.cpu.vectors import HAS_VECTORS

    return HAS_VECTORS
