"""A Llama-like decoder in a page of plain torch: what the speed of small models is measured by.

It never changes, so that a ratio to it only changes with hybridrt, torch or the machine.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.measure.runtime import Prompt
from hybridrt.measure.timing import collector_off

VOCAB, HIDDEN, INNER, HEADS, LAYERS = 4096, 256, 1024, 4, 4
SIZES = ((3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))
Cache = list[tuple[Tensor, Tensor]]


class PlainTorch:
    """The reference as a `Runtime`. Its weights are random, bfloat16."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        draw = torch.Generator().manual_seed(0)

        def weight(outputs: int, inputs: int) -> Tensor:
            return (torch.randn(outputs, inputs, generator=draw) * inputs**-0.5).bfloat16()

        self._embedding = weight(VOCAB, HIDDEN)
        self._layers = [tuple(weight(*sizes) for sizes in SIZES) for _ in range(LAYERS)]

    def prefill(self, prompts: Sequence[Prompt]) -> float:
        return self.complete(prompts, 1)

    @torch.inference_mode()
    def complete(self, prompts: Sequence[Prompt], output_tokens: int) -> float:
        with collector_off():
            start = self._clock()
            tokens, cache = self._step(torch.tensor(prompts), None)
            for _ in range(output_tokens - 1):
                tokens, cache = self._step(tokens, cache)
            return self._clock() - start

    @torch.inference_mode()
    def decode(self, context: Prompt, last: Prompt, steps: int) -> list[float]:
        _, cache = self._step(torch.tensor([context]), None)
        cache = [(k.repeat(len(last), 1, 1, 1), v.repeat(len(last), 1, 1, 1)) for k, v in cache]
        tokens, times = torch.tensor(last)[:, None], []
        with collector_off():
            for _ in range(steps):
                start = self._clock()
                tokens, cache = self._step(tokens, cache)
                times.append(self._clock() - start)
        return times

    def _step(self, ids: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next token of each row, and the keys and values behind it."""
        x, new = F.embedding(ids, self._embedding), []
        for index, (qkv, out, gate_up, down) in enumerate(self._layers):
            heads = F.linear(F.rms_norm(x, (HIDDEN,)), qkv).unflatten(-1, (3, HEADS, -1))
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            if cache is not None:
                k, v = (torch.cat(pair, 2) for pair in zip(cache[index], (k, v), strict=True))
            new.append((k, v))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            x = x + F.linear(seen.transpose(1, 2).flatten(2), out)
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,)), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        tokens = F.linear(x[:, -1:], self._embedding).argmax(-1)
        tokens.tolist()
        return tokens, new
