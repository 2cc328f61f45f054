"""What the sides of a measurement run: new random tokens each time, the same for all of them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from random import Random

from hybridrt.measure.runtime import Runtime, random_prompts
from hybridrt.measure.timing import Side

Runtimes = Mapping[str, Runtime]


def to_first_token(
    runtimes: Runtimes, vocab_size: int, batch: int, tokens: int, seed: int = 0
) -> dict[str, Side]:
    """Seconds until prompts of so many tokens all have their first token."""

    def run(runtime: Runtime, seeds: Iterable[int]) -> list[float]:
        return [runtime.prefill(random_prompts(vocab_size, batch, tokens, next(iter(seeds))))]

    return _sides(runtimes, run, seed)


def between_tokens(
    runtimes: Runtimes, vocab_size: int, batch: int, context: int, steps: int, seed: int = 0
) -> dict[str, Side]:
    """Seconds of steps of sequences behind so many tokens."""
    (prompt,) = random_prompts(vocab_size, 1, context, seed)

    def run(runtime: Runtime, seeds: Iterable[int]) -> list[float]:
        random = Random(next(iter(seeds)))
        return runtime.decode(prompt, [random.randrange(vocab_size) for _ in range(batch)], steps)

    return _sides(runtimes, run, seed)


def to_completion(
    runtimes: Runtimes,
    vocab_size: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    seed: int = 0,
) -> dict[str, Side]:
    """Seconds until so many prompts all have so many tokens."""

    def run(runtime: Runtime, seeds: Iterable[int]) -> list[float]:
        prompts = random_prompts(vocab_size, requests, prompt_tokens, next(iter(seeds)))
        return [runtime.complete(prompts, output_tokens)]

    return _sides(runtimes, run, seed)


def _sides(
    runtimes: Runtimes, run: Callable[[Runtime, Iterable[int]], list[float]], seed: int
) -> dict[str, Side]:
    """Each runtime's runs, with seeds of their own that are those of the others too."""
    return {name: partial(run, runtime, count(seed)) for name, runtime in runtimes.items()}
