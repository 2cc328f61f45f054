"""Zamba (arXiv 2405.16712): Mamba-1 layers, and one shared attention block among them.

The block is used several times, each time with a cache of that use's own. It reads the
stream beside the embeddings, and what it gives goes into a Mamba layer.
"""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear
from hybridrt.layers.mamba1 import Mamba1Config
from hybridrt.layers.mamba1_heads import Mamba1Heads
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig


class Config(ModelConfig):
    """Keys of a Zamba `config.json`."""

    layers_block_type: list[Literal["mamba", "linear_attention", "hybrid"]] | None = None
    layer_types: list[Literal["mamba", "linear_attention", "hybrid"]] | None = None
    attn_layer_period: PositiveInt = 6
    attn_layer_offset: int = 4
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt = 16
    attention_hidden_size: PositiveInt | None = None
    attention_head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt = 14_848
    hidden_act: Literal["gelu"] = "gelu"
    n_mamba_heads: PositiveInt = 2
    mamba_d_state: PositiveInt = 16
    mamba_d_conv: PositiveInt = 4
    mamba_expand: PositiveInt = 2
    mamba_dt_rank: int | Literal["auto"] = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    hidden_mamba_act: Literal["silu"] = "silu"
    rms_norm_eps: float = 1e-5
    max_position_embeddings: PositiveInt = 4096
    # Where embeddings aren't tied, transformers takes it that uses of the block aren't either.
    tie_word_embeddings: Literal[True] = True

    has_rope = False

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """What a config says twice it says alike."""
        wide = 2 * self.hidden_size
        if self.attention_hidden_size not in (None, wide):
            raise ValueError(f"attention_hidden_size={self.attention_hidden_size} should be {wide}")
        if len(self.kinds) != self.num_hidden_layers:
            raise ValueError(
                f"layers_block_type has {len(self.kinds)} entries, should have "
                f"num_hidden_layers={self.num_hidden_layers}"
            )
        return self

    @property
    def kinds(self) -> list[str]:
        """Of every layer: `hybrid` where the shared block is used."""
        listed = self.layers_block_type or self.layer_types
        if listed:
            return [*listed]
        period, offset = self.attn_layer_period, self.attn_layer_offset
        rest = range(self.num_hidden_layers - 3)
        later = ["hybrid" if i % period == offset else "mamba" for i in rest]
        return ["mamba", "mamba", "hybrid", *later]

    @property
    def attention(self) -> AttentionConfig:
        """The shared attention's sizes. It reads twice the hidden size."""
        head_dim = self.attention_head_dim or 2 * self.hidden_size // self.num_attention_heads
        return AttentionConfig(
            hidden_size=2 * self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=head_dim,
            scale=(head_dim / 2) ** -0.5,
        )

    @property
    def mamba(self) -> Mamba1Config:
        """The Mamba-1 layers' sizes."""
        rank = self.mamba_dt_rank
        return Mamba1Config(
            hidden_size=self.hidden_size,
            intermediate_size=self.mamba_expand * self.hidden_size,
            state_size=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv,
            time_step_rank=-(-self.hidden_size // 16) if rank == "auto" else rank,
            use_bias=self.mamba_proj_bias,
            use_conv_bias=self.mamba_conv_bias,
        )


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
        self, x: Float[Tensor, "tokens two_hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v = self._project(x, batch)
        return self.o_proj(self.update_and_attend((q,), (k, v), batch).flatten(1))


class SharedBlock(nn.Module):
    """One use of attention and an MLP, behind norms; nothing is added to what goes in."""

    def __init__(self, config: Config, first: "SharedBlock | None") -> None:
        super().__init__()
        hidden, attention = config.hidden_size, config.attention
        self.self_attn = SharedAttention(attention, hidden, None, first and first.self_attn)
        if first is not None:
            take_modules(self, first)
            return
        self.input_layernorm = RMSNorm(2 * hidden, config.rms_norm_eps)
        self.feed_forward = MLP(hidden, config.intermediate_size, activation="gelu")
        self.pre_ff_layernorm = RMSNorm(hidden, config.rms_norm_eps)

    def forward(
        self, x: Float[Tensor, "tokens two_hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x = self.self_attn(self.input_layernorm(x), batch)
        return self.feed_forward(self.pre_ff_layernorm(x))


class MambaLayer(nn.Module):
    """Mamba-2 behind a norm. What a shared block gives goes into the norm, not the stream."""

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
        return x + self.mamba(self.input_layernorm(x if added is None else x + added), batch)


class HybridLayer(nn.Module):
    """A use of a shared block, then Mamba-2."""

    def __init__(self, hidden_size: int, block: nn.Module, mamba: MambaLayer) -> None:
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
    """A model whose layers see the embeddings too."""

    checkpoint_renames = (
        (r"^model\.final_layernorm\.", "model.norm."),
        (r"\.shared_transf\.", ".shared_transformer."),
    )

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        x = embedded = self.embed(batch)
        for layer in self.model.layers:
            x = layer(x, embedded, batch)
        return self.model.norm(x)


class Model(SharedBlockLM):
    """Mamba-1 in every layer; in some, the shared block before it."""

    Config = Config

    def __init__(self, config: Config) -> None:
        first: SharedBlock | None = None
        layers: list[nn.Module] = []
        for kind in config.kinds:
            mixer = Mamba1Heads(config.mamba, config.n_mamba_heads)
            mamba = MambaLayer(config.hidden_size, config.rms_norm_eps, mixer)
            if kind == "hybrid":
                block = SharedBlock(config, first)
                first = first or block
                layers.append(HybridLayer(config.hidden_size, block, mamba))
            else:
                layers.append(mamba)
        super().__init__(config, layers, config.rms_norm_eps)
