"""Zamba2 (arXiv 2411.15242): Mamba-2 layers, and a few shared attention blocks among them.

A block is used several times, each time with adapters and a cache of that use's own. It
reads the stream beside the embeddings, and what it gives goes into a Mamba-2 layer.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.linear import Linear
from hybridrt.layers.mamba2 import Mamba2, Mamba2Config
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.config import ModelConfig
from hybridrt.models.zamba import (
    HybridLayer,
    MambaLayer,
    SharedAttention,
    SharedBlockLM,
    take_modules,
)


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
        for key, right in sizes.items():
            value = getattr(self, key)
            if value is not None and value != right:
                raise ValueError(f"{key}={value} should be {right}, as the other keys say")
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


class Adapters(nn.ModuleDict):
    """A projection of low rank for each use of one block, by the number of the use."""

    def __init__(self, config: Config, block: int, in_features: int, out_features: int) -> None:
        super().__init__()
        for use in range(block, len(config.uses), config.num_mem_blocks):
            down = Linear(in_features, config.adapter_rank)
            self[str(use)] = nn.Sequential(down, Linear(config.adapter_rank, out_features))

    def of_use(
        self, use: int, x: Float[Tensor, "tokens inputs"]
    ) -> Float[Tensor, "tokens outputs"]:
        """What that use adds to the shared projection."""
        return self[str(use)](x)


class AdaptedAttention(SharedAttention):
    """Shared attention whose queries, keys and values may be adapted, in each use by its own."""

    def __init__(
        self, config: Config, use: int, rope: Rope | None, first: "AdaptedAttention | None"
    ) -> None:
        super().__init__(config.attention, config.hidden_size, rope, first)
        self.use, self.adapts = use, config.use_shared_attention_adapter
        if self.adapts and first is None:
            block, wide = use % config.num_mem_blocks, 2 * config.hidden_size
            self.linear_q_adapter_list = Adapters(config, block, wide, wide)
            self.linear_k_adapter_list = Adapters(config, block, wide, wide)
            self.linear_v_adapter_list = Adapters(config, block, wide, wide)

    def _project(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv_proj(x)
        if self.adapts:
            lists = (
                self.linear_q_adapter_list,
                self.linear_k_adapter_list,
                self.linear_v_adapter_list,
            )
            qkv = qkv + torch.cat([adapters.of_use(self.use, x) for adapters in lists], dim=-1)
        return self._heads(qkv, batch)


class SharedMLP(nn.Module):
    """GeGLU, whose gate and up projections a checkpoint has as one."""

    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.add_bias_linear
        inner = config.intermediate_size or 4 * hidden
        self.gate_up_proj = Linear(hidden, 2 * inner, bias)
        self.down_proj = Linear(inner, hidden, bias)
        self.gate_up_proj_adapter_list = Adapters(config, block, hidden, 2 * inner)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], use: int
    ) -> Float[Tensor, "tokens hidden"]:
        adapted = self.gate_up_proj(x) + self.gate_up_proj_adapter_list.of_use(use, x)
        gate, up = adapted.chunk(2, dim=-1)
        return self.down_proj(F.gelu(gate).mul_(up))


class SharedBlock(nn.Module):
    """One use of attention and an MLP, behind norms; nothing is added to what goes in."""

    def __init__(
        self, config: Config, use: int, rope: Rope | None, first: "SharedBlock | None"
    ) -> None:
        super().__init__()
        self.use = use
        self.self_attn = AdaptedAttention(config, use, rope, first and first.self_attn)
        if first is not None:
            take_modules(self, first)
            return
        self.input_layernorm = RMSNorm(2 * config.hidden_size, config.rms_norm_eps)
        self.feed_forward = SharedMLP(config, use % config.num_mem_blocks)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Float[Tensor, "tokens two_hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x = self.self_attn(self.input_layernorm(x), batch)
        return self.feed_forward(self.pre_ff_layernorm(x), self.use)


class Model(SharedBlockLM):
    """Mamba-2 in every layer; in some, a shared block before it."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.attention.head_dim)
        rope = rope if config.use_mem_rope else None
        blocks: list[SharedBlock] = []
        layers: list[nn.Module] = []
        for kind in config.layers_block_type:
            mamba = MambaLayer(config.hidden_size, config.rms_norm_eps, Mamba2(config.mamba))
            if kind == "hybrid":
                use = len(blocks)
                first = (
                    blocks[use % config.num_mem_blocks] if use >= config.num_mem_blocks else None
                )
                blocks.append(SharedBlock(config, use, rope, first))
                layers.append(HybridLayer(config.hidden_size, blocks[-1], mamba))
            else:
                layers.append(mamba)
        super().__init__(config, layers, config.rms_norm_eps, [rope] if rope else [])
