"""Zamba (arXiv 2405.16712): Mamba-1 layers, and one shared attention block among them.

The block is used several times, each time with a cache of that use's own. It reads the
stream beside the embeddings, and what it gives goes into a Mamba layer.
"""

from typing import Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.mamba1 import Mamba1Config
from hybridrt.layers.mamba1_heads import Mamba1Heads
from hybridrt.layers.mlp import MLP
from hybridrt.layers.shared_attention import SharedAttention
from hybridrt.models.checks import check_agreement, check_one_for_each_layer
from hybridrt.models.config import ModelConfig
from hybridrt.models.shared_block import SharedBlock, SharedBlockLM


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
        check_agreement(self, {"attention_hidden_size": 2 * self.hidden_size})
        check_one_for_each_layer(self.num_hidden_layers, layers_block_type=self.kinds)
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


class Model(SharedBlockLM):
    """Mamba-1 in every layer; in some, the shared block before it."""

    Config = Config

    def __init__(self, config: Config) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps

        def block(use: int, first: SharedBlock | None) -> SharedBlock:
            attention = SharedAttention(config.attention, hidden, None, first and first.self_attn)
            mlp = (
                MLP(hidden, config.intermediate_size, activation="gelu")
                if first is None
                else first.feed_forward
            )
            return SharedBlock(hidden, eps, attention, mlp, first)

        def mixer() -> Mamba1Heads:
            return Mamba1Heads(config.mamba, config.n_mamba_heads)

        super().__init__(config, config.kinds, mixer, block)
