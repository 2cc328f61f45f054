"""Dots 3 Note (dots-studio/dots3-note-prev), its text model: MLA of three kinds, and experts.

Layers see all tokens, the last few, or those an indexer selects, each kind with its own sizes.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE
from hybridrt.layers.normed_key_mla import NormedKeyMLA, NormedKeySparseMLA
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.dots3_note_config import LayerSizes, LayerType, in_todays_words
from hybridrt.models.routing import deepseek_v3_routing


class Config(ModelConfig):
    """Keys of the text model, by today's names or by those of its publication."""

    intermediate_size: PositiveInt = 13_824
    moe_intermediate_size: PositiveInt = 1536
    shared_experts_intermediate_size: PositiveInt = 1536
    num_attention_heads: PositiveInt = 128
    q_lora_rank: PositiveInt = 1024
    kv_lora_rank: PositiveInt = 512
    qk_nope_head_dim: PositiveInt = 128
    qk_rope_head_dim: PositiveInt = 64
    v_head_dim: PositiveInt = 128
    attention_bias: bool = False
    sliding_window: PositiveInt = 512
    index_topk: PositiveInt = 2048
    index_head_dim: PositiveInt = 128
    index_n_heads: PositiveInt = 64
    layer_types: list[LayerType]
    mlp_layer_types: list[Literal["dense", "sparse"]]
    per_layer_config: dict[int, LayerSizes]
    n_routed_experts: PositiveInt = 256
    n_shared_experts: PositiveInt = 1
    num_experts_per_tok: PositiveInt = 8
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    scoring_func: Literal["sigmoid"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 524_288
    rms_norm_eps: float = 1e-5
    rope_parameters: dict[LayerType, RopeConfig]

    has_rope = False
    without_effect = (
        *("num_key_value_heads", "head_dim", "qk_head_dim", "mlp_bias", "num_nextn_predict_layers"),
        *("vision_config", "audio_config", "image_token_id", "video_token_id", "audio_token_id"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model, and in the older spelling."""
        return super().from_json(in_todays_words(config), ignore)

    def mla(self, index: int) -> MLAConfig:
        """The sizes of a layer's attention."""
        own = self.per_layer_config.get(index, LayerSizes()).model_dump(exclude_none=True)
        names = MLAConfig.model_fields.keys()
        sizes = {key: getattr(self, key) for key in names if key in Config.model_fields}
        sizes |= {key: own[key] for key in own if key in names}
        slides = self.layer_types[index] == "sliding_attention"
        return MLAConfig(
            **sizes,
            latent_norm_eps=self.rms_norm_eps,
            query_scale=(self.hidden_size / sizes["q_lora_rank"]) ** 0.5,
            latent_scale=(self.hidden_size / sizes["kv_lora_rank"]) ** 0.5,
            window=Window(self.sliding_window) if slides else None,
        )

    def index(self, query_input_size: int) -> IndexerConfig:
        """The indexers' sizes."""
        return IndexerConfig(
            hidden_size=self.hidden_size,
            query_input_size=query_input_size,
            index_n_heads=self.index_n_heads,
            index_head_dim=self.index_head_dim,
            index_topk=self.index_topk,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention."""
        if self.mlp_layer_types[index] == "dense":
            return MLP(self.hidden_size, self.intermediate_size)
        shared = self.shared_experts_intermediate_size * self.n_shared_experts
        return MoE(deepseek_v3_routing(self, shared_intermediate_size=shared))


class Model(CausalLM):
    """Attention, then an MLP or experts, as the two lists of the config say."""

    Config = Config

    def __init__(self, config: Config) -> None:
        ropes: dict[LayerType, Rope] = {}
        layers: list[nn.Module] = []
        for i, layer_type in enumerate(config.layer_types):
            mla = config.mla(i)
            settings = config.rope_parameters[layer_type]
            rope = ropes.setdefault(layer_type, Rope(settings, mla.qk_rope_head_dim, True))
            if rope.dim != mla.qk_rope_head_dim:
                raise ValueError(
                    f"per_layer_config[{i}].qk_rope_head_dim={mla.qk_rope_head_dim} should be "
                    f"{rope.dim}, as in the layers before of type {layer_type!r}"
                )
            if layer_type == "indexed_attention":
                indexer = Indexer(config.index(mla.q_lora_rank or 0), rope)
                attention = NormedKeySparseMLA(mla, rope, indexer)
            else:
                attention = NormedKeyMLA(mla, rope)
            mlp = config.feed_forward(i)
            layers.append(DecoderLayer(config.hidden_size, config.rms_norm_eps, attention, mlp))
        super().__init__(config, layers, config.rms_norm_eps, ropes.values())
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = (
            r"model\.mtp\..*",
            *(rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)),
        )
