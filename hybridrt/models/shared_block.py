"""Stacks with a few blocks of attention and an MLP that are used several times (Zamba).

Each use has a cache of its own. A block reads the stream beside the embeddings, and what it
gives goes into a recurrent layer.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.layers.shared_attention import SharedAttention
from hybridrt.models.causal_lm import CausalLM


class SharedBlock(nn.Module):
    """One use of attention and an MLP, behind norms; nothing is added to what goes in."""

    def __init__(
        self,
        hidden_size: int,
        norm_eps: float,
        self_attn: SharedAttention,
        feed_forward: nn.Module,
        first: "SharedBlock | None",
    ) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.input_layernorm, self.pre_ff_layernorm = (
            (RMSNorm(2 * hidden_size, norm_eps), RMSNorm(hidden_size, norm_eps))
            if first is None
            else (first.input_layernorm, first.pre_ff_layernorm)
        )

    def forward(
        self, x: Float[Tensor, "tokens two_hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x = self.self_attn(self.input_layernorm(x), batch)
        return self.feed_forward(self.pre_ff_layernorm(x))


class MambaLayer(nn.Module):
    """Mamba behind a norm. What a shared block gives goes into the norm, not the stream."""

    def __init__(self, hidden_size: int, norm_eps: float, mamba: CachedLayer) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, norm_eps)
        self.mamba = mamba

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        embedded: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
        added: Float[Tensor, "tokens hidden"] | None = None,
    ) -> Float[Tensor, "tokens hidden"]:
        normed = self.input_layernorm(x if added is None else add(x, added))
        return add(x, self.mamba(normed, batch))


class HybridLayer(nn.Module):
    """A use of a shared block, then Mamba."""

    def __init__(self, hidden_size: int, block: SharedBlock, mamba: MambaLayer) -> None:
        super().__init__()
        self.shared_transformer = block
        self.linear = Linear(hidden_size, hidden_size)
        self.mamba_decoder = mamba

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        embedded: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens hidden"]:
        attended = self.shared_transformer(torch.cat([x, embedded], dim=-1), batch)
        return self.mamba_decoder(x, embedded, batch, self.linear(attended))


class SharedBlockLM(CausalLM):
    """Mamba in every layer; in those of the kind `hybrid`, a shared block before it.

    `mixer` makes a layer's Mamba. `block` makes a use of a block, of its number among all uses
    and the first use of the same block, if that isn't itself; `num_blocks` take turns.
    """

    checkpoint_renames = (
        (r"^model\.final_layernorm\.", "model.norm."),
        (r"\.shared_transf\.", ".shared_transformer."),
    )

    def __init__(
        self,
        config: Any,
        kinds: Iterable[str],
        mixer: Callable[[], CachedLayer],
        block: Callable[[int, SharedBlock | None], SharedBlock],
        num_blocks: int = 1,
        ropes: Iterable[Rope] = (),
    ) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        uses: list[SharedBlock] = []
        layers: list[nn.Module] = []
        for kind in kinds:
            mamba = MambaLayer(size, eps, mixer())
            if kind == "hybrid":
                first = None if len(uses) < num_blocks else uses[len(uses) % num_blocks]
                uses.append(block(len(uses), first))
                layers.append(HybridLayer(size, uses[-1], mamba))
            else:
                layers.append(mamba)
        super().__init__(config, layers, eps, ropes)

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        x = embedded = self.embed(batch)
        for layer in self.model.layers:
            x = layer(x, embedded, batch)
        return self.model.norm(x)
