"""Shared weights that each use adapts in its own way, by a product of low rank (Zamba2).

As LoRA does (arXiv 2106.09685): `W x + B A x`, with an `A` and a `B` of each use's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.linear import Linear
from hybridrt.layers.rope import Rope
from hybridrt.layers.shared_attention import SharedAttention, take_modules


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a block: its number, those of all uses of that block, the adapters' rank."""

    number: int
    of_block: range
    rank: int


class Adapters(nn.ModuleDict):
    """A projection of low rank for each of these uses, by the number of the use."""

    def __init__(self, uses: Iterable[int], in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        for use in uses:
            self[str(use)] = nn.Sequential(Linear(in_features, rank), Linear(rank, out_features))

    def of_use(
        self, use: int, x: Float[Tensor, "tokens inputs"]
    ) -> Float[Tensor, "tokens outputs"]:
        """What that use adds to the shared projection."""
        return self[str(use)](x)


class AdaptedAttention(SharedAttention):
    """Shared attention whose queries, keys and values are adapted."""

    def __init__(
        self,
        config: AttentionConfig,
        output_size: int,
        rope: Rope | None,
        first: SharedAttention | None,
        use: Use,
    ) -> None:
        super().__init__(config, output_size, rope, first)
        self.use = use.number
        if first is None:
            size, head, uses = config.hidden_size, config.head_dim, use.of_block
            queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
            self.linear_q_adapter_list = Adapters(uses, size, queries, use.rank)
            self.linear_k_adapter_list = Adapters(uses, size, keys, use.rank)
            self.linear_v_adapter_list = Adapters(uses, size, keys, use.rank)

    def _project(
        self, x: Float[Tensor, "tokens inputs"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        lists = (
            self.linear_q_adapter_list,
            self.linear_k_adapter_list,
            self.linear_v_adapter_list,
        )
        added = torch.cat([adapters.of_use(self.use, x) for adapters in lists], dim=-1)
        return self._heads(self.qkv_proj(x) + added, batch)


class AdaptedMLP(nn.Module):
    """One use of GeGLU, whose gate and up projections are one, and adapted as one."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        first: nn.Module | None,
        use: Use,
    ) -> None:
        super().__init__()
        self.use = use.number
        if first is not None:
            take_modules(self, first)
            return
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)
        self.gate_up_proj_adapter_list = Adapters(
            use.of_block, hidden_size, 2 * intermediate_size, use.rank
        )

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        adapted = self.gate_up_proj(x) + self.gate_up_proj_adapter_list.of_use(self.use, x)
        gate, up = adapted.chunk(2, dim=-1)
        return self.down_proj(F.gelu(gate).mul_(up))
