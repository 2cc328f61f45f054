"""Hyper-connections, against loops that read as the papers do."""

import math

import pytest
import torch
from torch import Tensor

from hybridrt.layers.hyper_connections import (
    HyperConnection,
    HyperConnectionConfig,
    HyperHead,
    StreamGates,
    doubly_stochastic,
    open_streams,
)
from tests.harness.random_weights import randomise
from tests.harness.tolerance import assert_close


def _config(streams: int, iterations: int | None, magnitude: float) -> HyperConnectionConfig:
    return HyperConnectionConfig(
        hidden_size=10,
        rms_norm_eps=0.3,
        hc_mult=streams,
        hc_eps=0.1,
        hc_magnitude=magnitude,
        hc_sinkhorn_iters=iterations,
    )


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _gate(token: Tensor, weight: Tensor, scale: Tensor, base: Tensor) -> float:
    """One gate's logit, of one token's streams."""
    flat = token.flatten()
    size = math.sqrt(float((flat * flat).sum()) / len(flat) + 0.3)
    return float(scale) * float(flat @ weight) / size + float(base)


def _stochastic(logits: Tensor, iterations: int) -> Tensor:
    matrix = [[math.exp(v) / sum(map(math.exp, row)) + 0.1 for v in row] for row in logits.tolist()]
    count = len(matrix)
    for i in range(iterations):
        if i:
            matrix = [[v / (sum(row) + 0.1) for v in row] for row in matrix]
        sums = [sum(row[j] for row in matrix) + 0.1 for j in range(count)]
        matrix = [[row[j] / sums[j] for j in range(count)] for row in matrix]
    return torch.tensor(matrix)


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("iterations", [None, 1, 5])
def test_a_block_reads_and_writes_as_in_plain_loops(streams: int, iterations: int | None) -> None:
    layer = HyperConnection(_config(streams, iterations, 1.7))
    randomise(layer)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(6, streams, 10, generator=draw)
    read, gates = layer(x)
    out = torch.randn(6, 10, generator=draw)
    after = gates.add(x, out)
    kinds = [0] * streams + [1] * streams + [2] * streams**2
    for t, token in enumerate(x):
        logits = [
            _gate(token, layer.fn[g], layer.scale[kinds[g]], layer.base[g])
            for g in range(len(layer.fn))
        ]
        pre = [_sigmoid(v) + 0.1 for v in logits[:streams]]
        post = [1.7 * _sigmoid(v) for v in logits[streams : 2 * streams]]
        if iterations is None:
            post, mix = [v + 0.1 for v in post], torch.eye(streams)
        else:
            square = torch.tensor(logits[2 * streams :]).view(streams, streams)
            mix = _stochastic(square, iterations)
        assert_close(read[t], sum((pre[s] * token[s] for s in range(streams)), torch.zeros(10)))
        for s in range(streams):
            kept = sum((mix[r, s] * token[r] for r in range(streams)), torch.zeros(10))
            assert_close(after[t, s], post[s] * out[t] + kept)


def test_the_head_reads_as_in_plain_loops() -> None:
    head = HyperHead(_config(3, None, 2.0))
    randomise(head)
    x = torch.randn(5, 3, 10, generator=torch.Generator().manual_seed(1))
    for t, (token, read) in enumerate(zip(x, head(x), strict=True)):
        logits = [_gate(token, head.hc_fn[s], head.hc_scale[0], head.hc_base[s]) for s in range(3)]
        expected = sum(((_sigmoid(v) + 0.1) * token[s] for s, v in enumerate(logits)), x[t, 0] * 0)
        assert_close(read, expected)


def test_many_iterations_make_rows_and_columns_add_up_to_one() -> None:
    logits = 2 * torch.randn(7, 4, 4, generator=torch.Generator().manual_seed(1))
    matrix = doubly_stochastic(logits, 200, 1e-9)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(7, 4))
    torch.testing.assert_close(matrix.sum(-2), torch.ones(7, 4))


def test_streams_begin_alike_and_stay_in_their_dtype() -> None:
    layer = HyperConnection(_config(2, 3, 2.0))
    randomise(layer)
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    streams = open_streams(x, 2)
    assert torch.equal(streams[:, 0], x) and torch.equal(streams[:, 1], x)
    read, gates = layer(streams)
    after = gates.add(streams, x)
    assert read.dtype == after.dtype == torch.bfloat16
    assert gates.write.dtype == torch.float32


def test_no_output_and_no_mixing_leave_the_streams() -> None:
    streams = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1))
    gates = StreamGates(torch.ones(3, 2), None)
    assert torch.equal(gates.add(streams, torch.zeros(3, 5)), streams)
