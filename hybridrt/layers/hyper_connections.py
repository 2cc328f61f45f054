"""Hyper-connections: several residual streams, mixed by each token before and after every block.

Sources: arXiv 2409.19606; with streams that are mixed by a doubly stochastic matrix arXiv
2512.24880 (DeepSeek-V4, GLM-5.3); without that matrix Hy4.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.values import Value


class HyperConnectionConfig(Value):
    """Sizes and constants, under their Hugging Face names; `hc_mult` is the number of streams.

    With `hc_sinkhorn_iters` the streams are mixed with one another, by a matrix whose rows and
    columns are brought to sums of 1 so many times. Without it each is carried on as it is, and
    `hc_eps` is added to what goes into the streams too, not only to what is read from them.
    """

    hidden_size: PositiveInt
    rms_norm_eps: PositiveFloat
    hc_mult: PositiveInt
    hc_eps: float
    hc_magnitude: float = 2.0
    hc_sinkhorn_iters: PositiveInt | None = None


class StreamGates(NamedTuple):
    """What a token does with the output of a block.

    `write` is how much of it each stream gets. `mix[i, j]` is how much of stream i goes on in
    stream j; None: each goes on as it is.
    """

    write: Float32[Tensor, "tokens streams"]
    mix: Float32[Tensor, "tokens streams streams"] | None

    def add(
        self, streams: Float[Tensor, "tokens streams hidden"], out: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens streams hidden"]:
        """The streams behind the block. Added up in float32 whatever their dtype."""
        kept = streams.float() if self.mix is None else self.mix.mT @ streams.float()
        return (self.write[..., None] * out[:, None].float() + kept).to(streams.dtype)


class HyperConnection(nn.Module):
    """Reads the input of one block from the streams, and says what to do with its output.

    `fn: [gates, hc_mult * hidden_size]` makes the gates from all streams at once, divided by
    their root mean square; `scale` and `base` follow. Gates are those of reading, of writing,
    and the matrix if there is one, row by row. All in float32, whatever the model is in.
    """

    def __init__(self, config: HyperConnectionConfig) -> None:
        super().__init__()
        self.config = config
        n = config.hc_mult
        mixes = config.hc_sinkhorn_iters is not None
        self.gates = [n, n, n * n] if mixes else [n, n]
        self.fn = _float32(sum(self.gates), n * config.hidden_size)
        self.base = _float32(sum(self.gates))
        self.scale = _float32(len(self.gates))

    def forward(
        self, streams: Float[Tensor, "tokens streams hidden"]
    ) -> tuple[Float[Tensor, "tokens hidden"], StreamGates]:
        cfg = self.config
        logits = _logits(streams, self.fn, cfg.rms_norm_eps).split(self.gates, dim=-1)
        parts = zip(logits, self.scale, self.base.split(self.gates), strict=True)
        read, write, *mix = (logit * scale + base for logit, scale, base in parts)
        gates = StreamGates(cfg.hc_magnitude * torch.sigmoid(write), None)
        if cfg.hc_sinkhorn_iters is None:
            gates = StreamGates(gates.write + cfg.hc_eps, None)
        else:
            square = mix[0].unflatten(-1, (cfg.hc_mult, cfg.hc_mult))
            gates = gates._replace(mix=doubly_stochastic(square, cfg.hc_sinkhorn_iters, cfg.hc_eps))
        return _read(streams, torch.sigmoid(read) + cfg.hc_eps), gates


class HyperHead(nn.Module):
    """Reads what the last norm gets from the streams; its parameters are a connection's."""

    def __init__(self, config: HyperConnectionConfig) -> None:
        super().__init__()
        self.config = config
        self.hc_fn = _float32(config.hc_mult, config.hc_mult * config.hidden_size)
        self.hc_base = _float32(config.hc_mult)
        self.hc_scale = _float32(1)

    def forward(
        self, streams: Float[Tensor, "tokens streams hidden"]
    ) -> Float[Tensor, "tokens hidden"]:
        logits = _logits(streams, self.hc_fn, self.config.rms_norm_eps)
        read = torch.sigmoid(logits * self.hc_scale + self.hc_base) + self.config.hc_eps
        return _read(streams, read)


def open_streams(
    x: Float[Tensor, "tokens hidden"], count: int
) -> Float[Tensor, "tokens streams hidden"]:
    """Streams that all begin as `x`."""
    return x[:, None].expand(-1, count, -1)


def doubly_stochastic(
    logits: Float32[Tensor, "tokens streams streams"], iterations: int, eps: float
) -> Float32[Tensor, "tokens streams streams"]:
    """Sinkhorn and Knopp's way from a softmax to rows and columns that add up to 1.

    Columns are divided by their sums first and last, rows between them.
    """
    matrix = logits.softmax(-1) + eps
    for i in range(iterations):
        if i:
            matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


def _logits(
    streams: Float[Tensor, "tokens streams hidden"],
    weight: Float32[Tensor, "gates all_streams"],
    eps: float,
) -> Float32[Tensor, "tokens gates"]:
    """Linear in all streams divided by their root mean square."""
    flat = streams.flatten(1).float()
    return F.linear(flat, weight) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _read(
    streams: Float[Tensor, "tokens streams hidden"], gates: Float32[Tensor, "tokens streams"]
) -> Float[Tensor, "tokens hidden"]:
    return (gates[..., None] * streams).sum(1).to(streams.dtype)


def _float32(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
