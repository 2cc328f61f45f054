"""hybrid_stack: any stack of mixers, listed layer by layer in its `config.json`.

Every layer is `x + mixer(norm(x))`. An entry of `layers` has a `type` and the sizes of
that mixer; docs/adding-a-model.md has an example.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, ClassVar

from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.mamba2 import Limits, Mamba2, Mamba2Config
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope, RopeConfig, read_rope_parameters
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.values import Value


class LayerConfig(Value):
    """One entry of `layers`."""

    type: str

    def make(self, model: "Config") -> nn.Module:
        """The mixer."""
        raise NotImplementedError


class AttentionLayer(LayerConfig):
    """`rope_parameters: null` is attention without positions; left out, it is the default."""

    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    attention_bias: bool = False
    qk_norm: bool = False
    rope_parameters: dict[str, Any] | None = Field(default_factory=dict)

    def make(self, model: "Config") -> nn.Module:
        sizes = AttentionConfig(
            hidden_size=model.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention_bias=self.attention_bias,
            qk_norm_eps=model.rms_norm_eps if self.qk_norm else None,
        )
        if self.rope_parameters is None:
            return Attention(sizes, None)
        rope = model.rope(self.rope_parameters)
        dim = int(self.head_dim * (rope.partial_rotary_factor or 1.0))
        return Attention(sizes, Rope(rope, dim))


class MLALayer(LayerConfig):
    """Multi-head latent attention."""

    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    rope_parameters: dict[str, Any] = Field(default_factory=dict)
    rope_interleave: bool = True

    def make(self, model: "Config") -> nn.Module:
        sizes = self.model_dump(exclude={"type", "rope_parameters", "rope_interleave"})
        rope = Rope(model.rope(self.rope_parameters), self.qk_rope_head_dim, self.rope_interleave)
        config = MLAConfig(
            hidden_size=model.hidden_size, latent_norm_eps=model.rms_norm_eps, **sizes
        )
        return MLA(config, rope)


class Mamba1Layer(LayerConfig):
    """A Mamba-1 mixer."""

    intermediate_size: PositiveInt
    state_size: PositiveInt
    conv_kernel: PositiveInt = 4
    time_step_rank: PositiveInt
    use_bias: bool = False
    use_conv_bias: bool = True

    def make(self, model: "Config") -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return Mamba1(Mamba1Config(hidden_size=model.hidden_size, **sizes))


class Mamba2Layer(LayerConfig):
    """A Mamba-2 mixer."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    n_groups: PositiveInt = 1
    conv_kernel: PositiveInt = 4
    chunk_size: PositiveInt = 64
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_limit: Limits = (0.0, inf)
    norm_before_gate: bool = False

    def make(self, model: "Config") -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        config = Mamba2Config(hidden_size=model.hidden_size, norm_eps=model.rms_norm_eps, **sizes)
        return Mamba2(config)


class MLPLayer(LayerConfig):
    """A SwiGLU MLP."""

    intermediate_size: PositiveInt

    def make(self, model: "Config") -> nn.Module:
        return MLP(model.hidden_size, self.intermediate_size)


class MoELayer(LayerConfig):
    """Experts chosen by softmax."""

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    norm_topk_prob: bool = True

    def make(self, model: "Config") -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return MoE(MoEConfig(hidden_size=model.hidden_size, **sizes))


LAYER_TYPES: Mapping[str, Callable[..., LayerConfig]] = {
    "attention": AttentionLayer,
    "mla": MLALayer,
    "mamba1": Mamba1Layer,
    "mamba2": Mamba2Layer,
    "mlp": MLPLayer,
    "moe": MoELayer,
}


class Config(ModelConfig):
    """Keys of a hybrid_stack `config.json`. `layers` gives `num_hidden_layers`."""

    rms_norm_eps: float = 1e-5
    layers: list[LayerConfig]

    has_rope: ClassVar[bool] = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "ModelConfig":
        """See `ModelConfig.from_json`; each entry of `layers` is checked by its type."""
        entries = config.get("layers")
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"config.json: layers={entries!r} should be a list of mixers")
        layers = [_layer(index, entry) for index, entry in enumerate(entries)]
        count = config.get("num_hidden_layers", len(layers))
        if count != len(layers):
            raise ValueError(
                f"config.json: num_hidden_layers={count}, but layers has {len(layers)} entries"
            )
        return super().from_json({**config, "layers": layers, "num_hidden_layers": count}, ignore)

    def rope(self, parameters: Mapping[str, Any]) -> RopeConfig:
        """A layer's `rope_parameters`, with the model's longest position."""
        longest = self.max_position_embeddings
        keys = {"rope_parameters": parameters, "max_position_embeddings": longest}
        return RopeConfig(**read_rope_parameters(keys))


def _layer(index: int, entry: Any) -> LayerConfig:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in LAYER_TYPES:
        raise ValueError(
            f"config.json: layers[{index}] has type={kind!r}; known are {', '.join(LAYER_TYPES)}"
        )
    try:
        return LAYER_TYPES[kind](**entry)
    except ValueError as error:
        raise ValueError(f"config.json: layers[{index}]: {error}") from None


def _make(index: int, entry: LayerConfig, config: Config) -> nn.Module:
    try:
        return entry.make(config)
    except ValueError as error:
        raise ValueError(f"config.json: layers[{index}]: {error}") from None


class Layer(nn.Module):
    """One mixer behind a norm."""

    def __init__(self, hidden_size: int, norm_eps: float, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.mixer = mixer

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        args = (batch,) if isinstance(self.mixer, CachedLayer) else ()
        return x + self.mixer(self.norm(x), *args)


class Model(CausalLM):
    """The stack that `layers` lists."""

    Config = Config

    def __init__(self, config: Config) -> None:
        mixers = [_make(index, entry, config) for index, entry in enumerate(config.layers)]
        ropes = [m.rope for m in mixers if isinstance(m, Attention | MLA) and m.rope is not None]
        layers = [Layer(config.hidden_size, config.rms_norm_eps, mixer) for mixer in mixers]
        super().__init__(config, layers, config.rms_norm_eps, ropes)
