"""GPT-NeoX-20B (arXiv 2204.06745) and Pythia: attention and MLP side by side, a norm for each."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.interleaved_attention import InterleavedAttention
from hybridrt.layers.mlp import UngatedMLP
from hybridrt.layers.norm import LayerNorm
from hybridrt.layers.rope import Rope
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.stream import Hidden
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of a GPT-NeoX `config.json`, by today's names or with `rotary_pct` and its kin."""

    intermediate_size: PositiveInt = 24_576
    num_attention_heads: PositiveInt = 64
    num_key_value_heads: None = None
    head_dim: None = None
    hidden_act: Literal["gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"] = "gelu"
    max_position_embeddings: PositiveInt = 2048
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: Literal[True] = True
    use_parallel_residual: bool = True

    has_partial_rope = True
    default_partial_rotary_factor = 0.25
    norm_class = LayerNorm
    without_effect = ("attention_probs_dropout_prob", "hidden_dropout_prob")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model, and in the older spelling."""
        values = dict(config)
        for old, new in (
            ("rotary_emb_base", "rope_theta"),
            ("rotary_pct", "partial_rotary_factor"),
        ):
            if (value := values.pop(old, None)) is not None:
                values[new] = value
        return super().from_json(values, ignore)

    @property
    def eps(self) -> float:
        return self.layer_norm_eps

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """Side by side or, without `use_parallel_residual`, one behind the other."""
        attention = InterleavedAttention(self.attention(index), rope)
        # The others are names of one approximation.
        activation = "gelu" if self.hidden_act == "gelu" else "gelu_pytorch_tanh"
        mlp = UngatedMLP(self.hidden_size, self.intermediate_size, True, activation)
        layer = TwoNormParallelLayer if self.use_parallel_residual else DecoderLayer
        return layer(self.hidden_size, self.eps, attention, mlp, LayerNorm)


class TwoNormParallelLayer(DecoderLayer):
    """`x + attention(norm(x)) + mlp(other_norm(x))`."""

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.self_attn(normed, batch)
        return x + attended, self.mlp(self.post_attention_layernorm(x))


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
    norm_class = LayerNorm
    ignored_tensors = (*TransformerLM.ignored_tensors, r".*\.self_attn\.(masked_)?bias")
    checkpoint_renames = (
        (r"^gpt_neox\.", "model."),
        (r"^model\.embed_in\.", "model.embed_tokens."),
        (r"^model\.final_layer_norm\.", "model.norm."),
        (r"^embed_out\.", "lm_head."),
        (r"\.attention\.", ".self_attn."),
        (r"\.self_attn\.dense\.", ".self_attn.o_proj."),
        (r"\.dense_h_to_4h\.", ".up_proj."),
        (r"\.dense_4h_to_h\.", ".down_proj."),
    )
