"""Qwen3-Next (Qwen team, 2025): Gated DeltaNet, gated attention in every fourth layer, experts."""

from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.gated_attention import GatedAttention
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig, Projections
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.norm import OffsetRMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden, StreamLayer


class Config(ModelConfig):
    """Keys of a Qwen3-Next `config.json`. A quarter of each head is rotated by default."""

    intermediate_size: PositiveInt | None = None
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt = 2
    head_dim: PositiveInt = 256
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 32_768
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig
    partial_rotary_factor: float | None = None
    attention_bias: bool = False
    linear_conv_kernel_dim: PositiveInt = 4
    linear_key_head_dim: PositiveInt = 128
    linear_value_head_dim: PositiveInt = 128
    linear_num_key_heads: PositiveInt = 16
    linear_num_value_heads: PositiveInt = 32
    decoder_sparse_step: PositiveInt = 1
    moe_intermediate_size: PositiveInt = 512
    shared_expert_intermediate_size: PositiveInt = 512
    num_experts_per_tok: PositiveInt = 10
    num_experts: int = 512
    norm_topk_prob: bool = True
    mlp_only_layers: list[int] | None = None
    layer_types: list[Literal["linear_attention", "full_attention"]] | None = None
    full_attention_interval: PositiveInt = 4
    use_sliding_window: Literal[False] = False

    has_partial_rope = True
    default_rotated_share: ClassVar[float] = 0.25
    projections: ClassVar[Projections] = "by_key_head"

    def is_attention(self, index: int) -> bool:
        """Whether the layer is attention; else it is Gated DeltaNet."""
        if self.layer_types is None:
            return (index + 1) % self.full_attention_interval == 0
        return self.layer_types[index] == "full_attention"

    def rope(self) -> Rope:
        """The rotary table of the attention layers."""
        inside, outside = self.rope_parameters.partial_rotary_factor, self.partial_rotary_factor
        default = self.default_rotated_share
        factor = next(given for given in (inside, outside, default) if given is not None)
        return Rope(self.rope_parameters, int(self.head_dim * factor))

    @property
    def attention(self) -> AttentionConfig:
        """The attention layers' sizes."""
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention_bias=self.attention_bias,
            qk_norm_eps=self.rms_norm_eps,
            qk_norm_offset=True,
        )

    @property
    def delta_net(self) -> GatedDeltaNetConfig:
        """The Gated DeltaNet layers' sizes."""
        return GatedDeltaNetConfig(
            hidden_size=self.hidden_size,
            num_key_heads=self.linear_num_key_heads,
            num_value_heads=self.linear_num_value_heads,
            key_head_dim=self.linear_key_head_dim,
            value_head_dim=self.linear_value_head_dim,
            conv_kernel=self.linear_conv_kernel_dim,
            norm_eps=self.rms_norm_eps,
            projections=self.projections,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """Experts and a shared one that each token gates, or an MLP."""
        routed = self.num_experts > 0 and (index + 1) % self.decoder_sparse_step == 0
        if not routed or index in (self.mlp_only_layers or ()):
            if self.intermediate_size is None:
                raise ValueError(f"layer {index} is an MLP, which needs intermediate_size")
            return MLP(self.hidden_size, self.intermediate_size)
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=self.norm_topk_prob,
            shared_intermediate_size=self.shared_expert_intermediate_size,
            shared_gate=True,
        )
        return MoE(sizes)


class Layer(StreamLayer):
    """A mixer, `self_attn` or `linear_attn`, then a feed-forward layer, each behind a norm."""

    def __init__(self, config: Config, index: int, rope: Rope) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = OffsetRMSNorm(size, eps)
        self.mixer_name = "self_attn" if config.is_attention(index) else "linear_attn"
        mixer = (
            GatedAttention(config.attention, rope)
            if config.is_attention(index)
            else GatedDeltaNet(config.delta_net)
        )
        self.add_module(self.mixer_name, mixer)
        self.post_attention_layernorm = OffsetRMSNorm(size, eps)
        self.mlp = config.feed_forward(index)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixer = self.get_submodule(self.mixer_name)
        mixed = mixer(normed, batch)
        x, normed = add_and_norm(x, mixed, self.post_attention_layernorm)
        return x, self.mlp(normed)


class Model(CausalLM):
    """Gated DeltaNet and gated attention. Every norm's weight is stored minus 1, but of gates."""

    Config = Config
    norm_class = OffsetRMSNorm
    checkpoint_renames = ((r"\.shared_expert\.", ".shared_experts."),)
    ignored_tensors = (r"mtp\..*",)

    def __init__(self, config: Config) -> None:
        rope = config.rope()
        layers = [Layer(config, i, rope) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
