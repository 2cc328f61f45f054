"""Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side, with multipliers."""

from typing import Literal

from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.kernels.gated import gated
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mamba2 import Mamba2, Mamba2Config
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.bamba import HybridConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.stream import Hidden, StreamLayer


class Config(HybridConfig):
    """Keys of a Falcon-H1 `config.json`. `mamba_d_ssm` comes before `mamba_expand`."""

    intermediate_size: PositiveInt
    mamba_d_ssm: PositiveInt | None = 1024
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    mamba_use_mlp: Literal[True] = True
    max_position_embeddings: PositiveInt = 8192
    rope_parameters: RopeConfig
    projectors_bias: bool = False
    mlp_bias: bool = False
    attn_layer_indices: None = None
    layers_block_type: list[Literal["hybrid"]] | None = None
    layer_types: list[Literal["hybrid"]] | None = None
    embedding_multiplier: float = 1.0
    lm_head_multiplier: float = 1.0
    key_multiplier: PositiveFloat = 1.0
    attention_in_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    mlp_multipliers: list[float] | None = Field(None, min_length=2, max_length=2)
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    ssm_multipliers: list[float] | None = Field(None, min_length=5, max_length=5)

    without_effect = ("mlp_expansion_factor",)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """The channels of the recurrence are its heads'."""
        if self.mamba.num_heads * self.mamba.head_dim != self.inner:
            raise ValueError(
                f"mamba_n_heads * mamba_d_head = {self.mamba.num_heads * self.mamba.head_dim} "
                f"should be {self.inner}, as mamba_d_ssm or mamba_expand * hidden_size say"
            )
        return self

    @property
    def inner(self) -> int:
        """Channels of the recurrence."""
        return self.mamba_d_ssm or super().inner

    @property
    def attention(self) -> AttentionConfig:
        """The attention's sizes. Keys are multiplied, which is what a scale of scores does."""
        sizes = super().attention
        scale = self.key_multiplier * sizes.head_dim**-0.5
        return sizes.model_copy(update={"scale": scale})

    @property
    def mamba(self) -> Mamba2Config:
        """The Mamba-2 layers' sizes."""
        z, x, B, C, dt = self.ssm_multipliers or [1.0] * 5
        multipliers = (z, x, B, C, dt)
        unlike = {
            "output_bias": self.projectors_bias,
            "gated_norm": self.mamba_rms_norm,
            "norm_before_gate": self.mamba_norm_before_gate,
            "multipliers": multipliers if set(multipliers) != {1.0} else None,
        }
        return super().mamba.model_copy(update=unlike)


class ScaledMLP(MLP):
    """SwiGLU, whose gate is multiplied before it is bent, and so is what comes out."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.of_gate, self.of_output = config.mlp_multipliers or (1.0, 1.0)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        if self.of_gate == 1.0:
            return times(super().forward(x), self.of_output)
        inner = gated(self.gate_up_proj(x), "silu of scaled", alpha=self.of_gate)
        return times(self.down_proj(inner), self.of_output)


class Layer(StreamLayer):
    """Mamba-2 and attention on one norm, added up; then a feed-forward layer."""

    def __init__(self, config: Config, rope: Rope) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mamba = Mamba2(config.mamba)
        self.self_attn = Attention(config.attention, rope)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = ScaledMLP(config)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        cfg = self.config
        recurrent = self.mamba(times(normed, cfg.ssm_in_multiplier), batch)
        attended = self.self_attn(times(normed, cfg.attention_in_multiplier), batch)
        x, scale = add(x, recurrent, cfg.ssm_out_multiplier), cfg.attention_out_multiplier
        x, normed = add_and_norm(x, attended, self.pre_ff_layernorm, scale)
        return x, self.feed_forward(normed)


def times(x: Float[Tensor, "tokens size"], factor: float) -> Float[Tensor, "tokens size"]:
    """`x * factor`; by 1, as most are in some models, nothing is multiplied."""
    return x if factor == 1.0 else x * factor


class Model(CausalLM):
    """The same layer all the way up."""

    Config = Config
    config: Config
    checkpoint_renames = ((r"^model\.final_layernorm\.", "model.norm."),)

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.attention.head_dim)
        layers = [Layer(config, rope) for _ in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope])

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        return times(super().embed(batch), self.config.embedding_multiplier)

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        return times(super().logits(hidden), self.config.lm_head_multiplier)
