"""What makes keys and values of MLA's latents (`kv_b_proj`; arXiv 2405.04434, section 2.1)."""

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.quantised_linear import Bits
from hybridrt.kernels.room import OF_ITS_OWN, Room
from hybridrt.kernels.rounded_heads import RoundedHeads, can_round_heads, round_heads
from hybridrt.layers.linear import Linear


class LatentExpansion(Linear):
    """A weight that is read in two parts, `w_uk` and `w_uv`, and never run as a whole.

    Where it is rounded, steps of decodes read `rounded_uk` and `rounded_uv`, and all else, such as
    prompts, what those stand for, which `w_uk` and `w_uv` are by then.

    Attributes:
        rounds: whether it may be rounded: the layer's steps read few bits.
    """

    def __init__(self, heads: int, nope_dim: int, v_dim: int, rank: int) -> None:
        super().__init__(rank, heads * (nope_dim + v_dim), packs=False)
        self.heads, self.dims = heads, (nope_dim, v_dim)
        self.rounds = True
        self.rounded_uk: RoundedHeads | None = None
        self.rounded_uv: RoundedHeads | None = None
        self.stood_for: Tensor | None
        self.register_buffer("stood_for", None, persistent=False)

    @property
    def w_uk(self) -> Float[Tensor, "heads nope_dim rank"]:
        """Makes a latent a key without its rotated part."""
        return self._parts[0]

    @property
    def w_uv(self) -> Float[Tensor, "heads v_dim rank"]:
        """Makes it a value."""
        return self._parts[1]

    @property
    def num_bytes(self) -> int:
        if self.rounded_uk is None or self.rounded_uv is None:
            return super().num_bytes
        return self.rounded_uk.num_bytes + self.rounded_uv.num_bytes

    def pack(self, bits: Bits | None = None, room: Room = OF_ITS_OWN) -> None:
        """See `Linear.pack`. A query is summed over `nope_dim`, so `w_uk` is rounded transposed."""
        if self.rounded_uk is not None:
            return
        sides = self.w_uk.transpose(1, 2), self.w_uv
        if not self.rounds or bits is None or not all(can_round_heads(s, bits) for s in sides):
            super().pack(None, room)
            return
        self.rounded_uk, uk = round_heads(sides[0], bits, room)
        self.rounded_uv, uv = round_heads(sides[1], bits, room)
        whole = room.new_empty(self.weight, *self.weight.shape)
        self.stood_for, self.weight = whole, nn.Parameter(self.weight.to("meta"), False)
        self.w_uk[:], self.w_uv[:] = uk.transpose(1, 2), uv

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        whole = self.weight if self.stood_for is None else self.stood_for
        return whole.unflatten(0, (self.heads, -1)).split(self.dims, dim=1)
