"""Routers against their papers, token by token, and the layer around them."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from hybridrt.layers.moe import MoE, MoEConfig, Router
from tests.harness.random_weights import randomise
from tests.harness.tolerance import FLOAT32, assert_close

HIDDEN, EXPERTS, TOP_K = 24, 12, 3


@dataclass(frozen=True)
class Routing:
    """A way to choose, as changes against the first."""

    reason: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> MoEConfig:
        sizes = {
            "hidden_size": HIDDEN,
            "moe_intermediate_size": 10,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
        }
        return MoEConfig(**{**sizes, **self.changes})


ROUTINGS = (
    Routing("softmax, normalised"),
    Routing("softmax, as it comes", {"norm_topk_prob": False}),
    Routing("scaled", {"norm_topk_prob": False, "routed_scaling_factor": 2.5}),
    Routing("one expert", {"num_experts_per_tok": 1}),
    Routing("all experts", {"num_experts_per_tok": EXPERTS}),
    Routing("best groups", {"norm_topk_prob": False, "n_group": 4, "topk_group": 2}),
    Routing("sigmoid", {"scoring_func": "sigmoid"}),
    Routing("sigmoid, corrected", {"scoring_func": "sigmoid", "correction_bias": True}),
    Routing(
        "sigmoid, corrected, best groups by two",
        {
            "scoring_func": "sigmoid",
            "correction_bias": True,
            "n_group": 3,
            "topk_group": 2,
            "group_score": "top2",
            "routed_scaling_factor": 2.5,
        },
    ),
)


def _route(config: MoEConfig, x: Tensor, router: Router) -> dict[int, float]:
    """The experts of one token and their weights (arXiv 2405.04434, 2412.19437 eq. 12-16)."""
    logits = router.weight.double() @ x.double()
    softmax = config.scoring_func == "softmax"
    scores = (logits.softmax(0) if softmax else logits.sigmoid()).tolist()
    bias = [0.0] * config.num_experts
    if config.correction_bias:
        bias = router.e_score_correction_bias.tolist()
    merit = [score + b for score, b in zip(scores, bias, strict=True)]

    size = config.num_experts // config.n_group
    groups = [range(g * size, (g + 1) * size) for g in range(config.n_group)]
    counted = 1 if config.group_score == "max" else 2
    groups.sort(key=lambda g: -sum(sorted((merit[e] for e in g), reverse=True)[:counted]))
    kept = [e for g in groups[: config.topk_group] for e in g]
    chosen = sorted(kept, key=lambda e: -merit[e])[: config.num_experts_per_tok]
    total = sum(scores[e] for e in chosen) if config.norm_topk_prob else 1.0
    return {e: config.routed_scaling_factor * scores[e] / total for e in chosen}


def _tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(60, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.reason)
def test_routes_as_the_paper_says(routing: Routing, dtype: torch.dtype) -> None:
    router = Router(routing.config)
    randomise(router)
    if routing.config.correction_bias:
        draw = torch.Generator().manual_seed(2)
        router.e_score_correction_bias.data = torch.rand(EXPERTS, generator=draw) - 0.7
    router.weight.data = router.weight.to(dtype)
    ids, weights = router(_tokens(dtype))
    assert ids.dtype == torch.int64
    assert weights.dtype == torch.float32
    for t, x in enumerate(_tokens(dtype)):
        given = dict(zip(ids[t].tolist(), weights[t].tolist(), strict=True))
        expected = _route(routing.config, x, router)
        assert given.keys() == expected.keys()
        assert given == pytest.approx(expected, rel=FLOAT32)


def test_groups_with_too_few_experts_give_the_others_no_weight() -> None:
    """One group of two experts, and three are asked for: the third counts nothing."""
    routing = Routing("", {"norm_topk_prob": False, "n_group": 6, "topk_group": 1})
    router = Router(routing.config)
    randomise(router)
    ids, weights = router(_tokens())
    for t, x in enumerate(_tokens()):
        pairs = zip(ids[t].tolist(), weights[t].tolist(), strict=True)
        given = {expert: weight for expert, weight in pairs if weight}
        assert given == pytest.approx(_route(routing.config, x, router), rel=FLOAT32)
        assert len(given) == 2


@pytest.mark.parametrize("shared_bias", [False, True])
@pytest.mark.parametrize("shared", [None, 14])
def test_the_layer_adds_routed_and_shared_experts(shared: int | None, shared_bias: bool) -> None:
    changes = {"shared_intermediate_size": shared, "shared_bias": shared_bias}
    layer = MoE(Routing("", changes).config)
    randomise(layer)
    x = _tokens()
    expected = torch.zeros_like(x)
    for t, token in enumerate(x):
        for expert, weight in _route(layer.gate.config, token, layer.gate).items():
            gate, up = (layer.experts.gate_up_proj[expert] @ token).chunk(2)
            expected[t] += weight * (layer.experts.down_proj[expert] @ (silu(gate) * up))
    if shared is not None:
        mlp = layer.shared_experts
        assert mlp is not None
        expected += _swiglu(x, mlp.gate_up_proj, mlp.down_proj)
    assert_close(layer(x), expected)


def test_a_gate_scales_the_shared_expert() -> None:
    shared = {"shared_intermediate_size": 14}
    layer, ungated = (MoE(Routing("", {**shared, **c}).config) for c in ({"shared_gate": True}, {}))
    randomise(layer)
    assert layer.shared_expert_gate is not None
    ungated.load_state_dict(layer.state_dict(), strict=False)
    routed = MoE(Routing("").config)
    routed.load_state_dict(layer.state_dict(), strict=False)
    x = _tokens()
    gate = (x @ layer.shared_expert_gate.weight.t()).sigmoid()
    assert_close(layer(x), routed(x) + gate * (ungated(x) - routed(x)))


def test_a_gate_without_a_shared_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a shared_intermediate_size"):
        Routing("", {"shared_gate": True}).config  # noqa: B018


def _swiglu(x: Tensor, gate_up: Any, down: Any) -> Tensor:
    both = x @ gate_up.weight.t()
    both = both if gate_up.bias is None else both + gate_up.bias
    gate, up = both.chunk(2, dim=-1)
    out = (silu(gate) * up) @ down.weight.t()
    return out if down.bias is None else out + down.bias


def test_checkpoint_layouts_fill_the_same_parameters() -> None:
    """Split or stacked, every element of every parameter is named once."""
    experts = MoE(Routing("").config).experts
    for layout in experts.checkpoint_layouts():
        for parameter in experts.parameters():
            parameter.data.zero_()
        for view in layout.values():
            view.data.add_(1)
        assert all(parameter.eq(1).all() for parameter in experts.parameters())
    split, stacked = experts.checkpoint_layouts()
    assert set(stacked) == {"experts.gate_up_proj", "experts.down_proj"}
    names = {f"experts.{e}.{p}_proj.weight" for e in range(EXPERTS) for p in ("gate", "up", "down")}
    assert set(split) == names
