"""Llama 4 (Meta, 2025): attention in chunks, layers without positions among them, experts."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.input_scaled_moe import InputScaledMoE
from hybridrt.layers.mla import QueryGrowth
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.rope import Rope
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Llama 4 `config.json`, or of the `text_config` in one."""

    intermediate_size: PositiveInt = 8192
    intermediate_size_mlp: PositiveInt = 16_384
    num_attention_heads: PositiveInt = 40
    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    num_experts_per_tok: PositiveInt = 1
    num_local_experts: PositiveInt = 16
    moe_layers: list[int] | None = None
    interleave_moe_layer_step: PositiveInt = 1
    use_qk_norm: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: PositiveInt = 4
    attention_chunk_size: PositiveInt | None = 8192
    layer_types: list[Literal["chunked_attention", "full_attention"]] | None = None
    attn_temperature_tuning: bool | int = True
    floor_scale: PositiveInt = 8192
    attn_scale: float = 0.1

    default_rope_theta = 500_000.0
    interleaved_rope = True
    without_effect = ("for_llm_compressor",)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model.

        Raises:
            ValueError: also if a list of layers is too short.
        """
        read = super().from_json(config, ignore)
        for key in ("no_rope_layers", "layer_types"):
            given = getattr(read, key)
            if given and len(given) < read.num_hidden_layers:
                raise ValueError(
                    f"config.json: {key} has {len(given)} entries; should have at least "
                    f"num_hidden_layers={read.num_hidden_layers}"
                )
        return read

    def has_positions(self, index: int) -> bool:
        """All layers but every fourth, or those with a 1 in the list."""
        if self.no_rope_layers:
            return bool(self.no_rope_layers[index])
        return (index + 1) % self.no_rope_layer_interval != 0

    def window(self, index: int) -> Window | None:
        """Layers with positions see their chunk, unless the types are listed."""
        chunked = self.has_positions(index)
        if self.layer_types is not None:
            chunked = self.layer_types[index] == "chunked_attention"
        if not chunked:
            return None
        if self.attention_chunk_size is None:
            raise ValueError(f"attention_chunk_size=None: layer {index} needs a number")
        return Window(self.attention_chunk_size, chunked=True)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in the layers that are listed, or in the last of every few; else an MLP."""
        step = self.interleave_moe_layer_step
        routed = (index + 1) % step == 0 if self.moe_layers is None else index in self.moe_layers
        if not routed:
            return MLP(self.hidden_size, self.intermediate_size_mlp)
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
        )
        return InputScaledMoE(sizes)

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """Queries and keys are normed where they are rotated, and grow where they are not."""
        rotated = self.has_positions(index)
        grows = self.attn_temperature_tuning and not rotated
        attention = Llama4Attention(
            self.attention(index),
            rope if rotated else None,
            self.rms_norm_eps if self.use_qk_norm and rotated else None,
            QueryGrowth(beta=self.attn_scale, length=self.floor_scale) if grows else None,
        )
        return DecoderLayer(self.hidden_size, self.eps, attention, self.feed_forward(index))


class Llama4Attention(Attention):
    """Attention that norms rotated queries and keys without weights, or lets queries grow."""

    def __init__(
        self,
        config: AttentionConfig,
        rope: Rope | None,
        norm_eps: float | None,
        growth: QueryGrowth | None,
    ) -> None:
        super().__init__(config, rope)
        self.norm_eps = norm_eps
        self.growth = growth

    def _project(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._project(x, batch)
        if self.norm_eps is not None:
            q, k = (F.rms_norm(part, part.shape[-1:], eps=self.norm_eps) for part in (q, k))
        if self.growth is not None:
            factors = self.growth.factors(batch.positions + 1)
            q = (q * factors[:, None, None]).to(q.dtype)
        return q, k, v


class Model(TransformerLM):
    """Attention in chunks, then an MLP or experts."""

    Config = Config
    checkpoint_renames = ((r"\.feed_forward\.", ".mlp."),)
