"""StarCoder2 (arXiv 2402.19173): LayerNorm, biases, and an MLP of GELU without a gate."""

from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.cache.spec import Window
from hybridrt.layers.linear import Linear
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
        return GeluMLP(self.hidden_size, self.intermediate_size, self.mlp_bias)


class GeluMLP(nn.Module):
    """`c_proj(gelu(c_fc(x)))`, with the names of GPT-2."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.c_fc = Linear(hidden_size, intermediate_size, bias)
        self.c_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
    norm_class = LayerNorm
