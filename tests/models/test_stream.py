"""A stack whose layers leave their sums to the next one computes what their calls do."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.norm import RMSNorm
from hybridrt.models.decoder import DecoderLayer, ParallelLayer
from hybridrt.models.mixer_layer import MixerLayer
from hybridrt.models.stream import run_layers

SIZE, EPS = 48, 1e-6
BATCH = cast(ForwardBatch, None)


class Mixer(nn.Linear):
    """What stands where attention does."""

    def __init__(self) -> None:
        super().__init__(SIZE, SIZE)

    def forward(self, x: Tensor, batch: Any = None) -> Tensor:
        return super().forward(x)


class Plain(nn.Module):
    """A layer that keeps its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = Mixer()

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        return x - self.mixer(x.to(self.mixer.weight.dtype))


def make_stack(dtype: torch.dtype) -> tuple[list[nn.Module], RMSNorm]:
    torch.manual_seed(0)
    layers = [
        DecoderLayer(SIZE, EPS, Mixer(), Mixer()),
        MixerLayer(SIZE, EPS, Mixer()),
        Plain(),
        Plain(),
        ParallelLayer(SIZE, EPS, Mixer(), Mixer()),
        DecoderLayer(SIZE, EPS, Mixer(), Mixer()),
    ]
    norm = RMSNorm(SIZE, EPS)
    for module in (*layers, norm):
        for parameter in module.parameters():
            nn.init.normal_(parameter.requires_grad_(False), std=0.5)
        module.to(dtype)
    return layers, norm


def called_in_turn(layers: list[nn.Module], norm: nn.Module, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, BATCH)
    return norm(x)


@pytest.mark.parametrize("tokens", [1, 7, 1200])  # the last by several threads
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stream", [None, torch.float32])
def test_sums_are_the_same_wherever_they_are_made(dtype, stream, tokens):
    layers, norm = make_stack(dtype)
    x = torch.randn(tokens, SIZE).to(stream or dtype)
    for count in range(len(layers) + 1):
        found = run_layers(layers[:count], norm, x, BATCH)
        assert torch.equal(found, called_in_turn(layers[:count], norm, x))


def test_who_watches_a_layer_sees_all_of_it():
    layers, norm = make_stack(torch.bfloat16)
    x, seen = torch.randn(3, SIZE, dtype=torch.bfloat16), []
    expected = run_layers(layers, norm, x, BATCH)
    layers[0].register_forward_hook(lambda module, given, made: seen.append((*given, made)))
    assert torch.equal(run_layers(layers, norm, x, BATCH), expected)
    ((given, _, made),) = seen
    assert torch.equal(given, x) and torch.equal(made, layers[0].forward(x, BATCH))


def test_who_watches_a_norm_sees_what_goes_into_it():
    layers, norm = make_stack(torch.bfloat16)
    x, seen = torch.randn(3, SIZE, dtype=torch.bfloat16), []
    expected = run_layers(layers, norm, x, BATCH)
    norm.register_forward_hook(lambda module, given, made: seen.append((*given, made)))
    assert torch.equal(run_layers(layers, norm, x, BATCH), expected)
    assert torch.equal(seen[0][1], expected)


def test_a_layer_with_a_call_of_its_own_is_called():
    class Doubled(DecoderLayer):
        def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
            return 2 * super().forward(x, batch)

    layers, norm = make_stack(torch.bfloat16)
    layers[1] = Doubled(SIZE, EPS, Mixer(), Mixer()).to(torch.bfloat16)
    for parameter in layers[1].parameters():
        nn.init.normal_(parameter.requires_grad_(False), std=0.5)
    x = torch.randn(3, SIZE, dtype=torch.bfloat16)
    assert torch.equal(run_layers(layers, norm, x, BATCH), called_in_turn(layers, norm, x))
