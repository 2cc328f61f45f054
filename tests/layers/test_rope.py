"""Rotary embeddings against complex products, and their scalings against `transformers`."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hybridrt.layers.rope import Rope, RopeConfig, read_rope_parameters, yarn_mscale
from tests.harness.tolerance import assert_close

DIM, LENGTH = 16, 200


def _rope(dim: int = DIM, interleaved: bool = False, **settings: Any) -> Rope:
    rope = Rope(RopeConfig(**settings), dim, interleaved)
    rope.prepare(LENGTH, torch.device("cpu"))
    return rope


def _heads(tokens: int, heads: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, heads, dim, generator=torch.Generator().manual_seed(seed))


def _turned(x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> Tensor:
    """Each pair of numbers as a complex one, times `e^(i position theta^(-2j/dim))`."""
    half = x.shape[-1] // 2
    frequencies = torch.tensor([theta ** (-2 * j / x.shape[-1]) for j in range(half)])
    angles = positions[:, None].double() * frequencies.double()
    pairs = x.double().unflatten(-1, (half, 2) if interleaved else (2, half))
    first, second = pairs.unbind(-1 if interleaved else -2)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.stack([turned.real, turned.imag], -1 if interleaved else -2).flatten(-2)


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half split"])
@pytest.mark.parametrize("theta", [100.0, 10_000.0])
@pytest.mark.parametrize("dim", [2, 6, 16])
def test_pairs_are_turned_as_complex_numbers(dim: int, theta: float, interleaved: bool) -> None:
    x, positions = _heads(40, 3, dim), torch.arange(40) * 4
    out = _rope(dim, interleaved, rope_theta=theta).apply(x, positions)
    assert_close(out, _turned(x, positions, theta, interleaved))


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half split"])
def test_values_behind_the_rotary_ones_stay_as_they_are(interleaved: bool) -> None:
    x, positions = _heads(10, 2, 20), torch.arange(10) + 3
    out = _rope(8, interleaved).apply(x, positions)
    assert torch.equal(out[..., 8:], x[..., 8:])
    assert_close(out[..., :8], _turned(x[..., :8], positions, 10_000.0, interleaved))


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half split"])
def test_scores_depend_on_distances_alone(interleaved: bool) -> None:
    rope, (q, k) = _rope(interleaved=interleaved), (_heads(1, 1, DIM, seed) for seed in (0, 1))

    def score(at: int, distance: int) -> Tensor:
        places = (torch.tensor([at + distance]), torch.tensor([at]))
        turned = [rope.apply(x, place) for x, place in zip((q, k), places, strict=True)]
        return (turned[0] * turned[1]).sum()

    for distance in (0, 1, 17):
        for at in (1, 60, 180):
            torch.testing.assert_close(score(at, distance), score(0, distance), rtol=0, atol=1e-4)


def test_bfloat16_is_turned_in_float32() -> None:
    x, positions = _heads(40, 3, DIM).bfloat16(), torch.arange(40) * 4
    out = _rope().apply(x, positions)
    assert torch.equal(out, _rope().apply(x.float(), positions).bfloat16())


_ORIGINAL: dict[str, Any] = {"original_max_position_embeddings": 64}
_YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, **_ORIGINAL}
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(DIM // 2)],
    "long_factor": [1.5 + 0.7 * i for i in range(DIM // 2)],
    **_ORIGINAL,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "default, small base": {"rope_type": "default", "rope_theta": 30.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **_ORIGINAL,
    },
    "llama3, narrow": {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 3.0,
        **_ORIGINAL,
    },
    "yarn": _YARN,
    "yarn, attention_factor": {**_YARN, "attention_factor": 1.7},
    "yarn, betas": {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn, not truncated": {**_YARN, "truncate": False},
    "yarn, mscales": {**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5},
    "yarn, equal mscales": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    "yarn, one mscale": {**_YARN, "mscale": 0.7},
    "longrope": {**_LONGROPE, "factor": 4.0},
    "longrope, attention_factor": {**_LONGROPE, "factor": 4.0, "attention_factor": 1.2},
}


def _oracles(x: Tensor, positions: Tensor, settings: dict[str, Any]) -> Tensor:
    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10_000.0, **settings},
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    queries = x.transpose(0, 1)[None]
    return apply_rotary_pos_emb(queries, queries, cos, sin)[0][0].transpose(0, 1)


@pytest.mark.parametrize("settings", SCALINGS.values(), ids=SCALINGS)
def test_scalings_are_those_of_transformers(settings: dict[str, Any]) -> None:
    x, positions = _heads(LENGTH, 2, DIM), torch.arange(LENGTH)
    rope = _rope(**settings)
    offset = rope.switch_length or 0  # so long a sequence has the second table
    assert_close(rope.apply(x, positions + offset), _oracles(x, positions, settings))


def test_longrope_within_its_first_length_has_the_first_table() -> None:
    x, positions = _heads(64, 2, DIM), torch.arange(64)
    rope = _rope(**SCALINGS["longrope"])
    assert rope.switch_length == 64
    assert_close(rope.apply(x, positions), _oracles(x, positions, SCALINGS["longrope"]))


def test_dynamic_is_default_and_says_how_far() -> None:
    x, positions = _heads(150, 2, DIM), torch.arange(150)
    rope = _rope(rope_type="dynamic", factor=4.0, max_position_embeddings=150)
    assert rope.longest_exact == 150
    assert torch.equal(rope.apply(x, positions), _rope().apply(x, positions))


@pytest.mark.parametrize("settings", SCALINGS.values(), ids=SCALINGS)
def test_all_but_dynamic_are_exact_at_any_length(settings: dict[str, Any]) -> None:
    assert _rope(**settings).longest_exact is None


def test_longrope_without_a_factor_takes_the_ratio_of_lengths() -> None:
    stretched = {**_LONGROPE, "max_position_embeddings": 256}
    factor = _rope(**stretched, factor=4.0).attention_factor
    assert factor > 1
    assert _rope(**stretched).attention_factor == factor


def test_yarn_mscale_is_one_where_nothing_is_stretched() -> None:
    assert yarn_mscale(1.0, 5.0) == 1.0
    assert yarn_mscale(0.5) == 1.0
    assert yarn_mscale(4.0, 0.5) == pytest.approx(0.1 * 0.5 * 1.3862943611 + 1)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings"),
        ({"rope_type": "llama3", "factor": 2.0}, "original_max_position_embeddings"),
        ({"rope_type": "longrope", **_ORIGINAL, "short_factor": [1.0]}, "long_factor"),
    ],
    ids=str,
)
def test_a_scaling_without_what_it_needs_is_refused(settings: dict[str, Any], missing: str) -> None:
    with pytest.raises(ValueError, match=rf"{settings['rope_type']}.*needs.*'{missing}'"):
        RopeConfig(**settings)


def test_longrope_factors_of_the_wrong_number_are_refused() -> None:
    with pytest.raises(ValueError, match="short_factor has 8 values; 6 dimensions need 3"):
        _rope(6, **_LONGROPE)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="rope_type='spiral'"):
        _rope(rope_type="spiral")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10_000.0}),
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_parameters": {"rope_theta": 7.0}}, {"rope_type": "default", "rope_theta": 7.0}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        ),
        (
            {"rope_scaling": {"type": "su", "rope_type": "yarn"}, "max_position_embeddings": 9},
            {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 9},
        ),
        (
            {
                "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 5},
                "original_max_position_embeddings": 6,
            },
            {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 6},
        ),
    ],
    ids=str,
)
def test_old_and_new_keys_are_read(config: dict[str, Any], expected: dict[str, Any]) -> None:
    longest = config.get("max_position_embeddings")
    assert read_rope_parameters(config) == {**expected, "max_position_embeddings": longest}
