"""Granite 4.0 (IBM, 2025): Mamba-2 and attention layers, each before an MLP, and experts."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.kernels.gated import gated
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear
from hybridrt.layers.mamba2 import Mamba2
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.bamba import HybridConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.checks import check_one_for_each_layer
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden, StreamLayer


class Config(HybridConfig):
    """Keys of a Granite 4.0 `config.json`. Without experts, `num_local_experts` is 0."""

    num_key_value_heads: PositiveInt | None = None
    intermediate_size: PositiveInt = 11_008
    shared_intermediate_size: PositiveInt = 1024
    num_local_experts: NonNegativeInt = 8
    num_experts_per_tok: PositiveInt = 2
    layer_types: list[Literal["mamba", "linear_attention", "attention", "full_attention"]] | None
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-6
    position_embedding_type: Literal["rope", "nope"] | None = None
    rope_parameters: RopeConfig
    embedding_multiplier: float = 1.0
    logits_scaling: PositiveFloat = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: PositiveFloat = 1.0
    normalization_function: Literal["rmsnorm"] = "rmsnorm"

    without_effect = ("init_method",)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """`layer_types` may be called `layers_block_type`; without either, all are Mamba-2."""
        types = config.get("layer_types") or config.get("layers_block_type")
        others = {key: value for key, value in config.items() if key != "layers_block_type"}
        return super().from_json({**others, "layer_types": types}, ignore)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """A type for each layer."""
        check_one_for_each_layer(self.num_hidden_layers, layer_types=self.layer_types)
        return self

    @property
    def attention(self) -> AttentionConfig:
        """The attention layers' sizes."""
        return super().attention.model_copy(update={"scale": self.attention_multiplier})

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
        )

    def mixer(self, index: int, rope: Rope | None) -> CachedLayer:
        """The layer's attention or Mamba-2."""
        kind = self.layer_types[index] if self.layer_types else "mamba"
        attends = kind in ("attention", "full_attention")
        return Attention(self.attention, rope) if attends else Mamba2(self.mamba)


class SharedMLP(nn.Module):
    """SwiGLU, whose gate and up projections a checkpoint has as one."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.shared_intermediate_size
        self.input_linear = Linear(hidden, 2 * inner)
        self.output_linear = Linear(inner, hidden)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.output_linear(gated(self.input_linear(x)))


class Layer(StreamLayer):
    """A mixer, `self_attn` or `mamba`, then the MLP and the experts side by side."""

    def __init__(self, config: Config, mixer: CachedLayer) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer_name = "self_attn" if isinstance(mixer, Attention) else "mamba"
        self.add_module(self.mixer_name, mixer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.shared_mlp = SharedMLP(config)
        self.block_sparse_moe = MoE(config.moe) if config.num_local_experts else None
        self.scale = config.residual_multiplier

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixer = self.get_submodule(self.mixer_name)
        mixed = mixer(normed, batch)
        x, normed = add_and_norm(x, mixed, self.post_attention_layernorm, self.scale)
        out = self.shared_mlp(normed)
        if self.block_sparse_moe is not None:
            out = add(out, self.block_sparse_moe(normed))
        return x, out


class Model(CausalLM):
    """Mamba-2 and attention layers, each followed by an MLP, with experts or without."""

    Config = Config
    config: Config
    checkpoint_renames = (
        (r"\.block_sparse_moe\.input_linear\.weight$", ".block_sparse_moe.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight$", ".block_sparse_moe.experts.down_proj"),
        (r"\.block_sparse_moe\.router\.(layer\.)?", ".block_sparse_moe.gate."),
    )

    def __init__(self, config: Config) -> None:
        rotates = config.position_embedding_type == "rope"
        rope = Rope(config.rope_parameters, config.attention.head_dim) if rotates else None
        layers = [Layer(config, config.mixer(i, rope)) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope] if rope else [])

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        return super().embed(batch) * self.config.embedding_multiplier

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        return super().logits(hidden) / self.config.logits_scaling
