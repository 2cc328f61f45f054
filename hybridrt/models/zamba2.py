"""Zamba2 (arXiv 2411.15242): Mamba-2 layers, and a few shared attention blocks among them.

A block is used several times, each time with adapters and a cache of that use's own. It
reads the stream beside the embeddings, and what it gives goes into a Mamba-2 layer.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.adapters import AdaptedAttention, AdaptedMLP, Use
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.mamba2 import Mamba2, Mamba2Config
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.shared_attention import SharedAttention
from hybridrt.models.checks import check_agreement
from hybridrt.models.config import ModelConfig
from hybridrt.models.shared_block import SharedBlock, SharedBlockLM


class Config(ModelConfig):
    """Keys of a Zamba2 `config.json`. As in transformers, no step is below `time_step_min`."""

    layers_block_type: list[Literal["mamba", "linear_attention", "hybrid"]]
    hybrid_layer_ids: list[int] | None = None
    num_mem_blocks: PositiveInt = 1
    adapter_rank: PositiveInt = 128
    use_shared_attention_adapter: bool = False
    use_shared_mlp_adapter: Literal[True] = True
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt | None = None
    attention_hidden_size: PositiveInt | None = None
    attention_head_dim: PositiveInt | None = None
    use_mem_rope: bool = False
    use_long_context: Literal[False] = False
    rope_parameters: RopeConfig
    intermediate_size: PositiveInt | None = None
    hidden_act: Literal["gelu"] = "gelu"
    add_bias_linear: bool = False
    mamba_d_state: PositiveInt = 64
    mamba_d_conv: PositiveInt = 4
    mamba_expand: PositiveInt = 2
    mamba_ngroups: PositiveInt = 1
    n_mamba_heads: PositiveInt = 8
    mamba_headdim: PositiveInt | None = None
    chunk_size: PositiveInt = 256
    use_conv_bias: Literal[True] = True
    time_step_min: float = 0.001
    rms_norm_eps: float = 1e-5
    max_position_embeddings: PositiveInt = 4096
    # Where embeddings aren't tied, transformers takes it that blocks aren't either.
    tie_word_embeddings: Literal[True] = True

    without_effect = ("kv_channels", "num_query_groups", "use_mem_eff_path")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """`layers_block_type` may be called `layer_types`."""
        values = {"layers_block_type": config.get("layer_types"), **config}
        values.pop("layer_types", None)
        return super().from_json(values, ignore)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """What a config says twice it says alike."""
        heads, hidden = self.num_attention_heads, self.hidden_size
        sizes = {
            "hybrid_layer_ids": self.uses,
            "num_hidden_layers": len(self.layers_block_type),
            "attention_hidden_size": 2 * hidden,
            "attention_head_dim": 2 * hidden // heads,
            "mamba_headdim": self.mamba_expand * hidden // self.n_mamba_heads,
        }
        if self.use_shared_attention_adapter:
            sizes["num_key_value_heads"] = heads
        check_agreement(self, sizes)
        return self

    @property
    def uses(self) -> list[int]:
        """The layers in which a shared block is used."""
        return [i for i, kind in enumerate(self.layers_block_type) if kind == "hybrid"]

    @property
    def attention(self) -> AttentionConfig:
        """The shared attention's sizes. It reads twice the hidden size."""
        heads = self.num_attention_heads
        head_dim = 2 * self.hidden_size // heads
        return AttentionConfig(
            hidden_size=2 * self.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=self.num_key_value_heads or heads,
            head_dim=head_dim,
            scale=(head_dim / 2) ** -0.5,
        )

    @property
    def mamba(self) -> Mamba2Config:
        """The Mamba-2 layers' sizes. The eps of their own norm is fixed."""
        return Mamba2Config(
            hidden_size=self.hidden_size,
            num_heads=self.n_mamba_heads,
            head_dim=self.mamba_expand * self.hidden_size // self.n_mamba_heads,
            state_size=self.mamba_d_state,
            n_groups=self.mamba_ngroups,
            conv_kernel=self.mamba_d_conv,
            chunk_size=self.chunk_size,
            use_bias=self.add_bias_linear,
            time_step_limit=(self.time_step_min, inf),
            norm_eps=1e-5,
        )


class Model(SharedBlockLM):
    """Mamba-2 in every layer; in some, a shared block before it."""

    Config = Config

    def __init__(self, config: Config) -> None:
        hidden, eps, blocks = config.hidden_size, config.rms_norm_eps, config.num_mem_blocks
        rope = Rope(config.rope_parameters, config.attention.head_dim)
        rope = rope if config.use_mem_rope else None

        def block(number: int, first: SharedBlock | None) -> SharedBlock:
            use = Use(number, range(number % blocks, len(config.uses), blocks), config.adapter_rank)
            sizes, shared = config.attention, first and first.self_attn
            attention = (
                AdaptedAttention(sizes, hidden, rope, shared, use)
                if config.use_shared_attention_adapter
                else SharedAttention(sizes, hidden, rope, shared)
            )
            inner = config.intermediate_size or 4 * hidden
            shared_mlp = first and first.feed_forward
            mlp = AdaptedMLP(hidden, inner, config.add_bias_linear, shared_mlp, use)
            return SharedBlock(hidden, eps, attention, mlp, first)

        def mixer() -> Mamba2:
            return Mamba2(config.mamba)

        ropes = [rope] if rope else []
        super().__init__(config, config.layers_block_type, mixer, block, blocks, ropes)
