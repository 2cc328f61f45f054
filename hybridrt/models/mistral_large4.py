"""Mistral Large 4 (mistralai, `mistral_large4`): GLM-5's sparse attention without positions in
every fourth layer, rotated by learned frequencies in the others.

Queries are scaled by the logarithm of their position, and layers may share their latents. The
text model of a multimodal checkpoint, under Mistral's own names or transformers'.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from pydantic import PositiveInt, model_validator
from torch import nn

from hybridrt.kernels.quantised_linear import Quantization
from hybridrt.layers.learned_frequencies import LearnedFrequencies
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.rope import Rope
from hybridrt.layers.scaled_sparse_mla import ScaledIndexer, ScaledSparseMLA
from hybridrt.layers.sparse_mla import SparseMLA
from hybridrt.models import glm_moe_dsa
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import MLP_RENAMES
from hybridrt.models.deepseek_v32 import Layer, SelectingLM
from hybridrt.models.mistral4 import check_groups

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}


class Config(glm_moe_dsa.Config):
    """Keys of the `text_config` of a Mistral Large 4 `config.json`."""

    q_lora_rank: None = None
    qk_nope_head_dim: PositiveInt = 64
    v_head_dim: PositiveInt = 128
    moe_intermediate_size: PositiveInt = 6144
    n_routed_experts: PositiveInt = 128
    num_experts_per_tok: PositiveInt = 4
    first_k_dense_replace: int = 1
    scoring_func: Literal["softmax"] = "softmax"
    norm_topk_prob: Literal[True] = True
    routed_scaling_factor: float = 1.0
    max_position_embeddings: PositiveInt = 1_048_576
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: PositiveInt = 4
    kv_source_layers: list[int] | None = None
    final_logit_softcapping: float = 30.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """The config, checked."""
        rope = config.get("rope_scaling") or config.get("rope_parameters") or _ROPE
        return super().from_json({**config, "rope_parameters": rope}, ignore)

    @model_validator(mode="after")
    def _shares_what_is_there(self) -> "Config":
        check_groups(self)
        sources = self.kv_source_layers
        stored: dict[bool, int] = {}  # the last layer, with and without positions, that others read
        for i, source in enumerate(sources or ()):
            if source == i and i in (sources or ())[i + 1 :]:
                stored[self.has_positions(i)] = i
            elif source != i and stored.get(self.has_positions(i)) != source:
                raise ValueError(
                    f"kv_source_layers[{i}]={source} should be {i}, or the last layer before it "
                    f"with positions as it has, and a cache that others read"
                )
        return self

    def has_positions(self, index: int) -> bool:
        """Whether a layer's queries and keys are rotated."""
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[index])
        return (index + 1) % self.no_rope_layer_interval != 0

    def latents_of(self, index: int) -> int:
        """The layer whose latents a layer reads."""
        return index if self.kv_source_layers is None else self.kv_source_layers[index]

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        unlike = {"scoring_func": "softmax", "correction_bias": False, "float32_router": True}
        return super().moe.model_copy(update=unlike)

    def mla_of(self, index: int) -> MLAConfig:
        """A layer's sizes: where nothing is rotated, all of a key comes from its latent."""
        update: dict[str, Any] = {"latent_norm_eps": self.rms_norm_eps}
        if not self.has_positions(index):
            size = self.qk_nope_head_dim + self.qk_rope_head_dim
            update |= {"qk_nope_head_dim": size, "qk_rope_head_dim": 0}
        return self.mla.model_copy(update=update)


class Model(SelectingLM):
    """Sparse MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config
    ignored_tensors = (r"mtp_dspark\..*", r"vision_language_adapter\..*")
    checkpoint_renames = (
        (r"^tok_embeddings\.", "model.embed_tokens."),
        (r"^lerope\.", "model.rotary_emb."),
        (r"^layers\.", "model.layers."),
        (r"^norm\.", "model.norm."),
        (r"^output\.", "lm_head."),
        (r"\.attention\.", ".self_attn."),
        (r"\.wq\.", ".q_proj."),
        (r"\.wkv_(a|b)(_with_mqa)?\.", r".kv_\1_proj\2."),
        (r"\.wo\.", ".o_proj."),
        (r"\.attention_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.kv_a_norm\.", ".kv_a_layernorm."),
        (r"(\.\d+)\.(gate|experts|shared_experts)\.", r"\1.mlp.\2."),
        (r"\.feed_forward\.", ".mlp."),
        *MLP_RENAMES,
        (r"\.ssmax_scaling\.s$", ".softmax_scaling.scale"),
        (r"\.ssmax_scaling\.b$", ".softmax_scaling.bias"),
    )

    def __init__(self, config: Config) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, interleaved=True)
        attentions: list[SparseMLA] = []
        layers: list[nn.Module] = []
        for i in range(config.num_hidden_layers):
            source = config.latents_of(i)
            shares = None if source == i else attentions[source]
            indexer = None
            if config.has_indexer(i):
                indexer = ScaledIndexer(config.index, rope if config.has_positions(i) else None)
            attentions.append(ScaledSparseMLA(config.mla_of(i), rope, indexer, shares))
            layers.append(Layer(size, eps, attentions[i], config.feed_forward(i)))
        cap = config.final_logit_softcapping
        super().__init__(config, layers, eps, [rope], logit_softcap=cap)
        self.model.rotary_emb = LearnedFrequencies(config.qk_rope_head_dim // 2)

    def prepare(
        self,
        max_model_len: int,
        device: torch.device,
        quantization: Quantization | None = None,
        *,
        packs: bool = True,
    ) -> None:
        """Makes what is computed rather than loaded, once the weights are there."""
        learned = self.model.rotary_emb
        assert isinstance(learned, LearnedFrequencies)
        learned.apply_to(self.ropes)
        super().prepare(max_model_len, device, quantization, packs=packs)
