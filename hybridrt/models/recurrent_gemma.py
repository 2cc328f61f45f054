"""RecurrentGemma (arXiv 2404.07839): Griffin's recurrent blocks, and windows among them."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import OffsetRMSNorm, add_and_norm
from hybridrt.layers.rg_lru import RecurrentBlock, RecurrentBlockConfig
from hybridrt.layers.rope import Rope
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.stream import Hidden, StreamLayer
from hybridrt.models.transformer import TransformerConfig


class Config(TransformerConfig):
    """Keys of a RecurrentGemma `config.json`. `block_types` repeats until there are enough."""

    intermediate_size: PositiveInt = 7680
    num_attention_heads: PositiveInt = 10
    lru_width: PositiveInt | None = None
    conv1d_width: int = Field(4, ge=2)
    attention_window_size: PositiveInt = 2048
    block_types: list[Literal["recurrent", "attention"]] = Field(
        ["recurrent", "recurrent", "attention"], min_length=1
    )
    hidden_act: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    logits_soft_cap: PositiveFloat = 30.0
    embeddings_scale_by_sqrt_dim: Literal[True] = True
    tie_word_embeddings: bool = True

    has_partial_rope = True
    default_partial_rotary_factor = 0.5
    without_effect = ("final_w_init_variance_scale", "w_init_variance_scale")

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has a bias, whatever the others have."""
        changes = {"output_bias": True, "window": Window(self.attention_window_size)}
        return super().attention(index).model_copy(update=changes)

    def mixer(self, index: int, rope: Rope) -> nn.Module:
        """A recurrent block or attention."""
        if self.block_types[index % len(self.block_types)] == "attention":
            return Attention(self.attention(index), rope)
        sizes = RecurrentBlockConfig(
            hidden_size=self.hidden_size,
            lru_width=self.lru_width or self.hidden_size,
            num_heads=self.num_attention_heads,
            conv_kernel=self.conv1d_width,
            activation=self.hidden_activation,
        )
        return RecurrentBlock(sizes)


class Layer(StreamLayer):
    """A mixer, `temporal_block`, then an MLP, each behind a norm and added to the stream."""

    entry_norm = "temporal_pre_norm"

    def __init__(self, config: Config, temporal_block: nn.Module) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.temporal_pre_norm = OffsetRMSNorm(size, eps)
        self.temporal_block = temporal_block
        self.channel_pre_norm = OffsetRMSNorm(size, eps)
        inner = config.intermediate_size // 2  # it counts the gate's and the other half
        self.mlp_block = MLP(size, inner, bias=True, activation=config.hidden_activation)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixed = self.temporal_block(normed, batch)
        x, normed = add_and_norm(x, mixed, self.channel_pre_norm)
        return x, self.mlp_block(normed)


class Model(CausalLM):
    """Recurrent blocks and attention in windows, in turn."""

    Config = Config
    norm_class = OffsetRMSNorm
    checkpoint_renames = ((r"^model\.final_norm\.", "model.norm."),)

    def __init__(self, config: Config) -> None:
        rope = config.rope()
        layers = [Layer(config, config.mixer(i, rope)) for i in range(config.num_hidden_layers)]
        super().__init__(
            config, layers, config.rms_norm_eps, [rope], logit_softcap=config.logits_soft_cap
        )
        # As bfloat16 has it, whatever the model's dtype.
        scale = torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16, device="cpu")
        self.embed_scale = scale.item()

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        return self.model.embed_tokens(batch.input_ids) * self.embed_scale
