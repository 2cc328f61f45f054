"""Mistral Small 4 (mistralai, `mistral4`): MLA whose queries grow, and experts.

Behind every `original_max_position_embeddings` tokens queries are multiplied by more, as in
Llama 4. The text model of `mistral3` checkpoints.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.mla import MLAConfig, QueryGrowth
from hybridrt.layers.moe import MoEConfig
from hybridrt.models import deepseek_v2


class Config(deepseek_v2.Config):
    """Keys of a `mistral4` `config.json`. Its rotary embedding is YaRN's."""

    moe_intermediate_size: PositiveInt = 2048
    q_lora_rank: PositiveInt | None = 1024
    kv_lora_rank: PositiveInt = 256
    qk_nope_head_dim: PositiveInt = 64
    n_routed_experts: PositiveInt = 128
    n_shared_experts: int | None = 1
    num_experts_per_tok: PositiveInt = 4
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    topk_method: Literal["greedy"] = "greedy"
    norm_topk_prob: bool = True
    max_position_embeddings: PositiveInt = 1_048_576
    rope_interleave: bool = True
    mlp_bias: Literal[False] = False
    llama_4_scaling_beta: float

    has_partial_rope = True

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "Config":
        """The config, checked; `llama_4_scaling_beta` stands in its `rope_parameters`."""
        rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        rest = {key: config[key] for key in config if key != "rope_scaling"}
        beta = {"llama_4_scaling_beta": rope.pop("llama_4_scaling_beta", None)}
        made = super().from_json({**rest, **beta, "rope_parameters": rope}, ignore)
        assert isinstance(made, cls)
        return made

    @model_validator(mode="after")
    def _is_what_is_implemented(self) -> "Config":
        rope, head_dim = self.rope_parameters, self.qk_nope_head_dim + self.qk_rope_head_dim
        factor = rope.partial_rotary_factor
        if rope.rope_type != "yarn":
            raise ValueError(f"rope_parameters.rope_type={rope.rope_type!r} should be 'yarn'")
        if factor is not None and int(head_dim * factor) != self.qk_rope_head_dim:
            raise ValueError(
                f"partial_rotary_factor={factor} of {head_dim} should be "
                f"qk_rope_head_dim={self.qk_rope_head_dim}"
            )
        check_groups(self)
        return self

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.n_routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=self.norm_topk_prob,
            routed_scaling_factor=self.routed_scaling_factor,
            n_group=self.n_group or 1,
            topk_group=self.topk_group or 1,
            group_score="top2",
            shared_intermediate_size=self.moe_intermediate_size * (self.n_shared_experts or 0),
        )

    @property
    def mla(self) -> MLAConfig:
        """The attention's sizes."""
        length = self.rope_parameters.original_max_position_embeddings
        assert length is not None
        growth = QueryGrowth(beta=self.llama_4_scaling_beta, length=length)
        return super().mla.model_copy(update={"query_growth": growth})


class Model(deepseek_v2.Model):
    """MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config
    text_config_of = ("mistral3",)


def check_groups(config: deepseek_v2.Config) -> None:
    """Refuses to choose more experts than the best groups have.

    Raises:
        ValueError: `topk_group` groups have fewer than `num_experts_per_tok`.
    """
    groups, chosen = config.n_group or 1, config.topk_group or 1
    if config.n_routed_experts // groups * chosen < config.num_experts_per_tok:
        raise ValueError(
            f"num_experts_per_tok={config.num_experts_per_tok} should be at most what "
            f"topk_group={chosen} of n_group={groups} hold of {config.n_routed_experts} experts"
        )
