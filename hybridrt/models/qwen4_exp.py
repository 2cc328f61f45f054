"""Qwen4-Exp (Qwen team, 2026), its text model: residual streams, n-grams and an indexer."""

from typing import Literal

from jaxtyping import Float
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.averaged_indexer import AveragedIndexer, AveragedIndexerConfig
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.gated_residual import GatedResidual, StreamMixer, add_to_streams
from hybridrt.layers.indexed_attention import IndexedGatedAttention
from hybridrt.layers.ngram_inputs import NgramConfig, NgramInputs
from hybridrt.layers.rope import Rope
from hybridrt.models import qwen3_5_moe
from hybridrt.models.causal_lm import CausalLM

LayerType = Literal["linear_attention", "indexed_attention", "full_attention"]


class Config(qwen3_5_moe.Config):
    """Keys of a Qwen4-Exp `text_config`. Its `full_attention` has an indexer too."""

    num_experts: PositiveInt = 512
    num_experts_per_tok: PositiveInt = 10
    layer_types: list[LayerType] | None = None
    output_gate_type: Literal["silu", "sigmoid"] | None = None
    hc_count: int = Field(4, ge=2)
    hc_lowrank: PositiveInt = 320
    ple_layer_ids: list[PositiveInt] | None = None
    ple_embed_dim: PositiveInt | None = None
    ple_conv_kernel_size: int = Field(4, ge=2)
    ngram_size: int = Field(3, ge=2)
    heads_per_ngram: PositiveInt = 8
    ngram_vocab_size_base: PositiveInt = 20_000_000
    make_ngram_vocab_size_divisible_by: PositiveInt = 128
    split_ngram_parts: PositiveInt = 512
    seed: int = 1234
    indexer_n_heads: PositiveInt | None = None
    indexer_kv_heads: Literal[1] | None = None
    indexer_head_dim: PositiveInt | None = None
    indexer_budget: PositiveInt | None = None
    indexer_compress_ratio: PositiveInt | None = None

    default_rotated_share = 1.0
    without_effect = (*qwen3_5_moe.Config.without_effect, "number_of_conv_states")

    @model_validator(mode="after")
    def _ngrams_are_of_linear_layers(self) -> "Config":
        for number in self.ple_layer_ids or ():
            if number > self.num_hidden_layers or self.is_attention(number - 1):
                raise ValueError(
                    f"ple_layer_ids={self.ple_layer_ids} should be numbers, from 1, of layers of "
                    f"the type linear_attention; {number} is not"
                )
        if self.ple_layer_ids and not self.eos_token_ids:
            raise ValueError("ple_layer_ids needs an eos_token_id, which n-grams don't cross")
        return self

    def is_attention(self, index: int) -> bool:
        """Whether the layer is attention; else it is Gated DeltaNet."""
        if self.layer_types is None:
            return (index + 1) % self.full_attention_interval == 0
        return self.layer_types[index] != "linear_attention"

    @property
    def delta_net(self) -> GatedDeltaNetConfig:
        """The Gated DeltaNet layers' sizes."""
        gate = self.output_gate_type or self.hidden_act
        return super().delta_net.model_copy(update={"output_gate": gate})

    def ngrams(self, index: int) -> NgramInputs | None:
        """What a layer gets of the last tokens beside the streams; None: nothing."""
        layers = sorted(set(self.ple_layer_ids or ()))
        if index + 1 not in layers:
            return None
        sizes = {key: getattr(self, key) for key in NgramConfig.model_fields if hasattr(self, key)}
        sizes["ple_embed_dim"] = self.ple_embed_dim or self.hidden_size
        sizes |= {"eos_token_id": self.eos_token_ids[0], "norm_eps": self.rms_norm_eps}
        return NgramInputs(NgramConfig(**sizes), layers.index(index + 1))

    def indexer(self, rope: Rope) -> AveragedIndexer:
        """A new indexer of an attention layer."""
        names = [key for key in AveragedIndexerConfig.model_fields if key.startswith("indexer_")]
        sizes = {key: getattr(self, key) for key in (*names, "hidden_size")}
        missing = [key for key, value in sizes.items() if value is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} should be given: attention has an indexer")
        return AveragedIndexer(AveragedIndexerConfig(**sizes, norm_eps=self.rms_norm_eps), rope)

    def residual(self) -> GatedResidual:
        """A new mixer of streams, in front of a layer."""
        return GatedResidual(self.hidden_size, self.hc_count, self.hc_lowrank, self.rms_norm_eps)


class Layer(nn.Module):
    """N-grams, if any; a mixer, `self_attn` or `linear_attn`; then experts."""

    def __init__(self, config: Config, index: int, rope: Rope) -> None:
        super().__init__()
        self.ple = config.ngrams(index)
        self.attn_hyper_connection = config.residual()
        self.mixer_name = "self_attn" if config.is_attention(index) else "linear_attn"
        mixer = (
            IndexedGatedAttention(config.attention, rope, config.indexer(rope))
            if config.is_attention(index)
            else GatedDeltaNet(config.delta_net)
        )
        self.add_module(self.mixer_name, mixer)
        self.mlp_hyper_connection = config.residual()
        self.mlp = config.feed_forward(index)

    def forward(
        self, x: Float[Tensor, "tokens streams"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens streams"]:
        if self.ple is not None:
            x = x + self.ple(x, batch)
        mixed, weights = self.attn_hyper_connection.split(x)
        x = add_to_streams(x, self.get_submodule(self.mixer_name)(mixed, batch), weights)
        mixed, weights = self.mlp_hyper_connection.split(x)
        return add_to_streams(x, self.mlp(mixed), weights)


class Model(CausalLM):
    """Gated DeltaNet and gated attention, each followed by experts, between streams."""

    Config = Config
    checkpoint_renames = (
        (r"\.shared_expert\.", ".shared_experts."),
        (r"^model\.hyper_connection_mixer\.", "model.norm."),
    )
    ignored_tensors = (r"mtp\..*",)

    def __init__(self, config: Config) -> None:
        rope = config.rope()
        layers = [Layer(config, i, rope) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
        self.streams, rank, eps = config.hc_count, config.hc_lowrank, config.rms_norm_eps
        self.model.norm = StreamMixer(config.hidden_size, self.streams, rank, eps)

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens streams"]:
        return super().embed(batch).repeat(1, self.streams)
