"""One token's experts together with the shared one in Triton against their formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt.kernels import moe, shared_expert
from hybridrt.kernels.op import observed_calls
from hybridrt.kernels.shared_expert import SharedExpert, moe_with_shared
from hybridrt.layers.moe import MoE, MoEConfig
from tests.harness.random_weights import randomise
from tests.harness.tolerance import assert_close, assert_right
from tests.kernels.triton.conftest import IN_INTERPRETER, ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]


def _normal(*shape: int, seed: int, place: Place) -> Tensor:
    scaled = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5
    return (2 * scaled).to(*place)


def _swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (gate * torch.sigmoid(gate) * up)


def _parts(
    place: Place, experts: int, hidden: int, inner: int, shared: int, gated: bool
) -> list[Tensor]:
    """x, the weights of all, and those of the shared one's gate if it has one."""
    shapes = [(1, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)]
    shapes += [(2 * shared, hidden), (hidden, shared)] + [(1, hidden)] * gated
    parts = [_normal(*shape, seed=seed, place=place) for seed, shape in enumerate(shapes)]
    parts[0] *= hidden**0.5
    return parts


def _run(parts: list[Tensor], ids: Tensor, weights: Tensor) -> Tensor:
    from hybridrt.kernels.triton.one_row_experts import one_row_experts

    x, gate_up, down, shared_gate_up, shared_down, *gate = parts
    shared = SharedExpert(shared_gate_up, shared_down, gate[0] if gate else None)
    return one_row_experts(x, gate_up, down, ids.to(x.device), weights.to(x.device), shared=shared)


def _check(parts: list[Tensor], ids: Tensor, weights: Tensor) -> None:
    def definition(
        x: Tensor, gate_up: Tensor, down: Tensor, s_gate_up: Tensor, s_down: Tensor, *gate: Tensor
    ) -> Tensor:
        out = _swiglu(x[0], s_gate_up, s_down)
        if gate:
            out = torch.sigmoid(gate[0] @ x[0]) * out
        for expert, weight in zip(ids[0].tolist(), weights[0].to(x.dtype), strict=True):
            out = out + weight * _swiglu(x[0], gate_up[expert], down[expert])
        return out[None]

    out = _run(parts, ids, weights)
    assert out.dtype == parts[0].dtype
    assert_right(out, definition, *parts)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("hidden", "inner", "shared", "top_k"),
    [(96, 16, 16, 2), (33, 7, 5, 3), (70, 20, 50, 7)],
)
def test_equals_its_formula(
    place: Place, hidden: int, inner: int, shared: int, top_k: int, gated: bool
) -> None:
    _check_formula(place, hidden, inner, shared, top_k, gated)


@ONE_DTYPE_HERE
@pytest.mark.parametrize(("hidden", "inner", "shared"), [(1200, 3, 2), (2304, 2, 3)])
def test_long_rows_of_which_the_last_part_is_short(
    place: Place, hidden: int, inner: int, shared: int
) -> None:
    _check_formula(place, hidden, inner, shared, 2, True)


def _check_formula(
    place: Place, hidden: int, inner: int, shared: int, top_k: int, gated: bool
) -> None:
    parts = _parts(place, 9, hidden, inner, shared, gated)
    draw = torch.Generator().manual_seed(hidden)
    ids, weights = torch.randperm(9, generator=draw), torch.rand(1, top_k, generator=draw)
    _check(parts, ids[None, :top_k], weights)


@ONE_DTYPE_HERE
def test_sizes_of_one(place: Place) -> None:
    """In float32 alone: of a single number a narrow one's error is a matter of luck."""
    parts = _parts((place[0], torch.float32), 2, 1, 1, 1, True)
    _check(parts, torch.tensor([[1]]), torch.tensor([[0.7]]))


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    ("hidden", "inner", "shared", "top_k"), [(150, 50, 20, 3), (40, 17, 70, 5), (60, 8, 40, 11)]
)
def test_rows_in_parts(
    place: Place, hidden: int, inner: int, shared: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridrt.kernels.triton import one_row_experts, one_row_from_inner

    monkeypatch.setattr(one_row_experts, "_INPUTS", 16)
    monkeypatch.setattr(one_row_from_inner, "INPUTS", 16)
    draw = torch.Generator().manual_seed(hidden)
    ids, weights = torch.randperm(12, generator=draw), torch.rand(1, top_k, generator=draw)
    _check(_parts(place, 12, hidden, inner, shared, True), ids[None, :top_k], weights)


def test_views(place: Place) -> None:
    """Of a wider x, of experts' weights by columns, and of the shared one's among others."""
    x, gate_up, down, s_gate_up, s_down, gate = _parts(place, 5, 120, 12, 20, True)
    routed = torch.tensor([[4, 9, 1, 9, 0]])[:, ::2], torch.tensor([[0.2, 9, 0.9, 9, 1.5]])[:, ::2]
    down = down[:, ::2].transpose(1, 2).contiguous().transpose(1, 2)
    parts = [x[:, ::2], gate_up[:, :, :60], down, s_gate_up[:, 3:63], s_down[::2], gate[:, 5:65]]
    _check(parts, *routed)


@ONE_DTYPE_HERE
def test_extremes(place: Place) -> None:
    """A gate that is shut, one that is open, and weights of 0."""
    ids, weights = torch.tensor([[1, 2]]), torch.tensor([[0.0, 1.0]])
    parts = _parts(place, 3, 64, 6, 9, True)
    for factor in (-1e3, 1e3):
        _check([*parts[:-1], factor * parts[0].sign() / 64], ids, weights)


@ONE_DTYPE_HERE
def test_nothing_is_left_unwritten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(self: Tensor, *size: int, device: Any = None) -> Tensor:
        poison = torch.nan if self.is_floating_point() else -1
        return torch.full(size, poison, dtype=self.dtype, device=device or self.device)

    parts = _parts(place, 4, 50, 7, 13, True)
    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    _check(parts, torch.tensor([[3, 1]]), torch.tensor([[0.3, 0.9]]))


def _put_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets the contract see a GPU; a number for each token's experts that were summed at once."""
    from hybridrt.kernels.triton import one_row_experts

    calls: list[int] = []
    kernel = one_row_experts.one_row_experts

    def noted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(one_row_experts, "one_row_experts", noted)
    monkeypatch.setattr(shared_expert, "triton_takes", lambda _: True)
    return calls


def _layer(**changes: Any) -> MoE:
    sizes = {"hidden_size": 48, "moe_intermediate_size": 6, "num_experts": 6}
    sizes |= {"num_experts_per_tok": 3, "shared_intermediate_size": 10}
    layer = MoE(MoEConfig(**{**sizes, **changes}))
    randomise(layer, seed=0)
    return layer


@IN_INTERPRETER
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_layer_gives_what_its_parts_give(
    place: Place, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = _layer(shared_gate=gated)
    x = _normal(1, 48, seed=3, place=place) * 7
    expected = layer(x)
    calls = _put_in(monkeypatch)
    assert_close(layer(x), expected)
    assert calls == [1]


@IN_INTERPRETER
def test_what_is_not_taken(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than one; a shared expert with biases, watched, or another dtype's."""
    layer, biased = _layer(shared_gate=True), _layer(shared_bias=True)
    x = _normal(2, 48, seed=3, place=place)
    seen: list[Tensor] = []
    expected = [m(x[:rows]) for m in (layer, biased) for rows in (1, 2)]
    calls = _put_in(monkeypatch)
    assert torch.equal(layer(x), expected[1])
    assert torch.equal(biased(x[:1]), expected[2]) and torch.equal(biased(x), expected[3])
    for part in ("shared_experts", "shared_experts.down_proj", "shared_expert_gate"):
        hook = layer.get_submodule(part).register_forward_hook(lambda _m, _i, y: seen.append(y))
        assert torch.equal(layer(x[:1]), expected[0])
        hook.remove()
    assert len(seen) == 3
    with observed_calls(lambda *_: None):
        assert torch.equal(layer(x[:1]), expected[0])
    assert not calls


@IN_INTERPRETER
def test_the_contract_elsewhere(place: Place) -> None:
    """The sum of what the contracts of its parts give, bit for bit."""
    x, gate_up, down, *shared = _parts(place, 4, 32, 16, 24, False)
    ids, weights = torch.tensor([[0, 3]]), torch.tensor([[0.3, 0.9]])
    routed = moe.moe_experts(x, gate_up, down, ids, weights)
    out = moe_with_shared(x, gate_up, down, ids, weights, SharedExpert(*shared, None))
    assert_close(out, routed + _swiglu(x[0], *shared))
