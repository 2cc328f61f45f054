"""The routing of DeepSeek-V3 (arXiv 2412.19437), which others have taken over with its keys."""

from typing import Any, Protocol, runtime_checkable

from hybridrt.layers.moe import MoEConfig


@runtime_checkable
class RoutingKeys(Protocol):
    """The keys of a `config.json` that say how tokens are routed."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def n_routed_experts(self) -> int | None: ...
    @property
    def num_experts_per_tok(self) -> int | None: ...
    @property
    def norm_topk_prob(self) -> bool: ...
    @property
    def routed_scaling_factor(self) -> float | None: ...
    @property
    def n_group(self) -> int | None: ...
    @property
    def topk_group(self) -> int | None: ...


def deepseek_v3_routing(
    keys: RoutingKeys, num_shared: int | None = None, **changes: Any
) -> MoEConfig:
    """Sigmoid scores, groups as good as their best two experts, a learned bias for the choice.

    `num_shared` experts see every token; further fields of `MoEConfig` as they are given.
    """
    factor = keys.routed_scaling_factor
    sizes = {
        "hidden_size": keys.hidden_size,
        "moe_intermediate_size": keys.moe_intermediate_size,
        "num_experts": keys.n_routed_experts,
        "num_experts_per_tok": keys.num_experts_per_tok,
        "scoring_func": "sigmoid",
        "norm_topk_prob": keys.norm_topk_prob,
        "routed_scaling_factor": 1.0 if factor is None else factor,
        "n_group": keys.n_group or 1,
        "topk_group": keys.topk_group or 1,
        "group_score": "top2",
        "correction_bias": True,
    }
    if num_shared is not None:
        sizes["shared_intermediate_size"] = keys.moe_intermediate_size * num_shared
    return MoEConfig(**{**sizes, **changes})
