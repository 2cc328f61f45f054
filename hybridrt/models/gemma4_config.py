"""The config of Gemma 4: what each layer is, of the ways in which it can be said."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.rope import RopeConfig, rope_by_layer_type
from hybridrt.models import gemma2
from hybridrt.models.gemma2 import LayerType

_ROPES: Mapping[str, Mapping[str, Any]] = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.25,
    },
    "sliding_attention": {"rope_theta": 10_000.0},
}


class Config(gemma2.GemmaConfig):
    """Keys of a Gemma 4 `config.json`, or of the `text_config` in one.

    What `per_layer_config` says of single layers comes before `global_head_dim` and
    `num_global_key_value_heads`, which are those of layers without a window.
    """

    vocab_size: PositiveInt = 262_144
    num_hidden_layers: PositiveInt = 30
    sliding_window: PositiveInt = 512
    query_pre_attn_scalar: None = None
    attn_logit_softcapping: None = None
    use_bidirectional_attention: Literal["vision"] | None = None
    global_head_dim: PositiveInt = 512
    num_global_key_value_heads: PositiveInt | None = None
    per_layer_config: dict[str, dict[Literal["head_dim", "num_key_value_heads"], int]] | None = None
    vocab_size_per_layer_input: PositiveInt = 262_144
    hidden_size_per_layer_input: int | None = 256
    attention_k_eq_v: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    enable_moe_block: bool = False
    num_experts: PositiveInt | None = None
    top_k_experts: PositiveInt | None = None
    moe_intermediate_size: PositiveInt | None = None
    rope_parameters: dict[LayerType, RopeConfig]

    has_rope = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "Config":
        """As for every model.

        Raises:
            ValueError: also if a part of each head should be rotated in a way that isn't
                `proportional`, or tokens have no embedding for the layers.
        """
        ropes = rope_by_layer_type(config, _ROPES)
        for layer_type, rope in ropes.items():
            if rope.rope_type != "proportional" and rope.partial_rotary_factor not in (None, 1.0):
                raise ValueError(
                    f"config.json: rope_parameters[{layer_type!r}] has partial_rotary_factor="
                    f"{rope.partial_rotary_factor}; should be of the rope_type 'proportional'"
                )
        read = super().from_json({**config, "rope_parameters": ropes}, ignore)
        assert isinstance(read, Config)
        if read.hidden_size_per_layer_input and read.vocab_size_per_layer_input < read.vocab_size:
            raise ValueError(
                f"config.json: vocab_size_per_layer_input={read.vocab_size_per_layer_input} should "
                f"be at least vocab_size={read.vocab_size}"
            )
        return read

    @property
    def per_layer_size(self) -> int:
        """Dimensions of the embeddings that layers have for themselves; 0: there are none."""
        return self.hidden_size_per_layer_input or 0

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes."""
        inner, experts, top_k = self.moe_intermediate_size, self.num_experts, self.top_k_experts
        if inner is None or experts is None or top_k is None:
            raise ValueError(
                "config.json: enable_moe_block needs moe_intermediate_size, num_experts and "
                f"top_k_experts, which are {inner}, {experts} and {top_k}"
            )
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=inner,
            num_experts=experts,
            num_experts_per_tok=top_k,
        )

    @property
    def layer_list(self) -> list[LayerType]:
        """The type of each layer. The last never has a window."""
        return [*self.types(period=6)[:-1], "full_attention"]

    def attention_of(self, index: int) -> AttentionConfig:
        """The sizes of a layer's attention."""
        slides = self.layer_list[index] == "sliding_attention"
        heads = self.num_global_key_value_heads if self.attention_k_eq_v else None
        sizes: dict[str, Any] = {
            "head_dim": self.head_dim if slides else self.global_head_dim,
            "num_key_value_heads": self.num_key_value_heads if slides or not heads else heads,
        }
        if self.per_layer_config is not None:
            whole = {"head_dim": self.head_dim, "num_key_value_heads": self.num_key_value_heads}
            sizes = {**whole, **self.per_layer_config.get(str(index), {})}
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            attention_bias=self.attention_bias,
            qk_norm_eps=self.rms_norm_eps,
            window=Window(self.sliding_window) if slides else None,
            scale=1.0,
            **sizes,
        )

    def shared_by(self, index: int) -> int | None:
        """The layer whose cache layer `index` reads; None: its own."""
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if index < first:
            return None
        types = self.layer_list
        alike = [i for i in range(first) if types[i] == types[index]]
        if not alike:
            raise ValueError(
                f"config.json: num_kv_shared_layers={self.num_kv_shared_layers} leaves no layer of "
                f"{types[index]!r} whose cache layer {index} could read"
            )
        return alike[-1]
