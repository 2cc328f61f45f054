"""StarCoder2 (arXiv 2402.19173): LayerNorm, biases, and an MLP of GELU without a gate."""

from typing import Any, Literal

from pydantic import PositiveInt, model_validator
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.mlp import UngatedMLP
from hybridrt.layers.norm import LayerNorm
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of a StarCoder2 `config.json`. `use_bias` is that of every linear layer."""

    num_key_value_heads: PositiveInt | None = 2
    hidden_act: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    max_position_embeddings: PositiveInt = 4096
    norm_epsilon: float = 1e-5
    norm_type: Literal["layer_norm"] = "layer_norm"
    mlp_type: Literal["default"] = "default"
    use_bias: bool = True
    sliding_window: PositiveInt | None = None
    tie_word_embeddings: bool = True

    norm_class = LayerNorm
    without_effect = (
        "activation_function",
        "attention_softmax_in_fp32",
        "embedding_dropout",
        "scale_attention_softmax_in_fp32",
        "scale_attn_weights",
    )

    @model_validator(mode="before")
    @classmethod
    def _biases(cls, values: dict[str, Any]) -> dict[str, Any]:
        bias = values.get("use_bias", True)
        return {**values, "attention_bias": bias, "mlp_bias": bias}

    @property
    def eps(self) -> float:
        return self.norm_epsilon

    def window(self, index: int) -> Window | None:
        """The same in every layer."""
        return None if self.sliding_window is None else Window(self.sliding_window)

    def feed_forward(self, index: int) -> nn.Module:
        """`c_proj(gelu(c_fc(x)))`."""
        return UngatedMLP(self.hidden_size, self.intermediate_size, self.mlp_bias, self.hidden_act)


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
    norm_class = LayerNorm
    checkpoint_renames = ((r"\.c_fc\.", ".up_proj."), (r"\.mlp\.c_proj\.", ".mlp.down_proj."))
