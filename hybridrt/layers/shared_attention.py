"""Attention whose weights are used several times, each time with a cache of that use's own."""

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear
from hybridrt.layers.rope import Rope


def take_modules(module: nn.Module, first: nn.Module) -> None:
    """Makes everything but caches that `first` holds a part of `module` too."""
    for name, child in first.named_children():
        if not isinstance(child, CachedLayer):
            setattr(module, name, child)


class SharedAttention(Attention):
    """One use of a block's attention: its cache, and with `first` the weights of another use."""

    def __init__(
        self,
        config: AttentionConfig,
        output_size: int,
        rope: Rope | None,
        first: "SharedAttention | None",
    ) -> None:
        super().__init__(config, rope)
        self.o_proj = Linear(config.num_attention_heads * config.value_dim, output_size)
        if first is not None:
            take_modules(self, first)

    def forward(
        self, x: Float[Tensor, "tokens inputs"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens outputs"]:
        q, k, v = self._project(x, batch)
        return self.o_proj(self.update_and_attend((q,), (k, v), batch).flatten(1))
