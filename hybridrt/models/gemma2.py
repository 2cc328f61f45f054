"""Gemma 2 (arXiv 2408.00118): windows in every second layer, soft caps, norms on both sides."""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import OffsetRMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.checks import check_one_for_each_layer
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden, StreamLayer

LayerType = Literal["sliding_attention", "full_attention"]


class GemmaConfig(ModelConfig):
    """The keys that Gemma's models have in common."""

    vocab_size: PositiveInt = 256_000
    hidden_size: PositiveInt = 2304
    intermediate_size: PositiveInt = 9216
    num_hidden_layers: PositiveInt = 26
    num_attention_heads: PositiveInt = 8
    num_key_value_heads: PositiveInt = 4
    head_dim: PositiveInt = 256
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: PositiveFloat | None = 256
    sliding_window: PositiveInt = 4096
    layer_types: list[LayerType] | None = None
    final_logit_softcapping: PositiveFloat | None = None
    attn_logit_softcapping: PositiveFloat | None = None
    use_bidirectional_attention: Literal[False] | None = False

    without_effect = ("cache_implementation", "hidden_act", "sliding_window_size")

    def types(self, period: int) -> list[LayerType]:
        """Of each layer: as they are listed, else the last of every `period` sees all tokens."""
        types = self.layer_types or [
            "sliding_attention" if (i + 1) % period else "full_attention"
            for i in range(self.num_hidden_layers)
        ]
        check_one_for_each_layer(self.num_hidden_layers, layer_types=types)
        return types

    def attention(self, layer_type: LayerType) -> AttentionConfig:
        """The sizes of attention in layers of a type."""
        scalar = self.query_pre_attn_scalar
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention_bias=self.attention_bias,
            window=Window(self.sliding_window) if layer_type == "sliding_attention" else None,
            softcap=self.attn_logit_softcapping,
            scale=None if scalar is None else scalar**-0.5,
        )


class Config(GemmaConfig):
    """Keys of a Gemma 2 `config.json`."""

    max_position_embeddings: PositiveInt = 8192
    final_logit_softcapping: PositiveFloat | None = 30.0
    attn_logit_softcapping: PositiveFloat | None = 50.0
    rope_parameters: RopeConfig


class Layer(StreamLayer):
    """Attention, then an MLP, each between two norms and added to the stream."""

    def __init__(self, config: GemmaConfig, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = OffsetRMSNorm(size, eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = OffsetRMSNorm(size, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(size, eps)
        self.mlp = mlp
        self.post_feedforward_layernorm = OffsetRMSNorm(size, eps)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.post_attention_layernorm(self.self_attn(normed, batch))
        x, normed = add_and_norm(x, attended, self.pre_feedforward_layernorm)
        return x, self.post_feedforward_layernorm(self.mlp(normed))


def rounded(number: float) -> float:
    """A factor as the model's dtype has it: Gemma multiplies by what is left of it there."""
    return torch.tensor(number, dtype=torch.get_default_dtype(), device="cpu").item()


class GemmaModel(CausalLM):
    """Scaled embeddings, and logits under a soft cap."""

    norm_class = OffsetRMSNorm

    def __init__(
        self, config: GemmaConfig, layers: Iterable[nn.Module], ropes: Iterable[Rope]
    ) -> None:
        super().__init__(
            config,
            layers,
            config.rms_norm_eps,
            ropes,
            logit_softcap=config.final_logit_softcapping,
        )
        self.embed_scale = rounded(config.hidden_size**0.5)

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        return self.model.embed_tokens(batch.input_ids) * self.embed_scale


class Model(GemmaModel):
    """Attention and GeGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.head_dim)
        layers = [
            Layer(
                config,
                Attention(config.attention(layer_type), rope),
                MLP(
                    config.hidden_size,
                    config.intermediate_size,
                    activation=config.hidden_activation,
                ),
            )
            for layer_type in config.types(period=2)
        ]
        super().__init__(config, layers, [rope])
