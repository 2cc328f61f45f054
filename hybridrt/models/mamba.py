"""Mamba (arXiv 2312.00752)."""

from typing import Literal

from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.norm import RMSNorm
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig


class Config(ModelConfig):
    """Keys of a Mamba `config.json`."""

    state_size: PositiveInt = 16
    expand: int | float = 2
    intermediate_size: PositiveInt | None = None
    conv_kernel: PositiveInt = 4
    time_step_rank: PositiveInt | Literal["auto"] = "auto"
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: Literal["silu"] = "silu"
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = True
    fused_add_norm: bool = True
    rms_norm: Literal[True] = True
    d_inner: int | None = None
    d_model: int | None = None
    n_layer: int | None = None

    has_rope = False
    without_effect = ("pad_vocab_size_multiple", "ssm_cfg")

    @property
    def inner(self) -> int:
        """Channels of the recurrence."""
        return int(self.expand * self.hidden_size)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """The same size under two names has one value."""
        sizes = (
            ("intermediate_size", self.inner),
            ("d_inner", self.inner),
            ("d_model", self.hidden_size),
            ("n_layer", self.num_hidden_layers),
        )
        for key, right in sizes:
            value = getattr(self, key)
            if value is not None and value != right:
                raise ValueError(f"{key}={value} should be {right}, as the other sizes say")
        return self


class Layer(nn.Module):
    """One mixer behind a norm."""

    def __init__(self, hidden_size: int, norm_eps: float, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.mixer = mixer

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        return x + self.mixer(self.norm(x), batch)


RENAMES = (
    (r"^backbone\.embeddings?\.", "model.embed_tokens."),
    (r"^backbone\.norm_f\.", "model.norm."),
    (r"^backbone\.", "model."),
)


class Model(CausalLM):
    """Mamba-1 in every layer."""

    Config = Config
    checkpoint_renames = RENAMES

    def __init__(self, config: Config) -> None:
        rank = config.time_step_rank
        mixer = Mamba1Config(
            hidden_size=config.hidden_size,
            intermediate_size=config.inner,
            state_size=config.state_size,
            conv_kernel=config.conv_kernel,
            time_step_rank=-(-config.hidden_size // 16) if rank == "auto" else rank,
            use_bias=config.use_bias,
            use_conv_bias=config.use_conv_bias,
        )
        eps = config.layer_norm_epsilon
        layers = [
            Layer(config.hidden_size, eps, Mamba1(mixer)) for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, eps, float32_residual=config.residual_in_fp32)
