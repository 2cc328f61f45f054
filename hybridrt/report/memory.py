"""Memory against context length: what a plan takes, and full attention in its place."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hybridrt.cache.explain import number_in
from hybridrt.cache.plan import CachePlan, LayerPlan

SHORTEST = 16
LONGEST = 131_072
"""Tokens at which curves begin, and at which they end for a model without a longest length."""
KINDS = ("full", "window", "state")


@dataclass(frozen=True, slots=True)
class MemoryCurves:
    """Bytes of one sequence at some lengths, without any rounding to pages.

    `by_kind` adds up to `total`. `full_attention` is what the same layers would take if each
    kept keys and values of every token, and None if that can't be known.
    """

    lengths: tuple[int, ...]
    total: tuple[int, ...]
    by_kind: dict[str, tuple[int, ...]]
    full_attention: tuple[int, ...] | None
    full_attention_means: str


def memory_curves(
    plan: CachePlan, longest: int | None = None, hidden_bytes: int | None = None
) -> MemoryCurves:
    """The curves of a plan, at powers of two up to `longest` tokens.

    `hidden_bytes` are those of a hidden vector. They say how wide attention would be in a model
    that has none.
    """
    lengths = curve_lengths(longest)
    by_kind = {
        kind: tuple(_bytes_of(plan.layers, kind, length) for length in lengths)
        for kind in KINDS
        if any(layer.kind == kind for layer in plan.layers)
    }
    per_token, meaning = full_attention_bytes(plan, hidden_bytes)
    return MemoryCurves(
        lengths=lengths,
        total=tuple(plan.bytes_for(length) for length in lengths),
        by_kind=by_kind,
        full_attention=None if per_token is None else tuple(per_token * n for n in lengths),
        full_attention_means=meaning,
    )


def curve_lengths(longest: int | None) -> tuple[int, ...]:
    """Powers of two from `SHORTEST` on, and the longest length itself."""
    end = max(longest or LONGEST, 1)
    powers = [2**n for n in range(SHORTEST.bit_length() - 1, end.bit_length())]
    return (*(length for length in powers if length < end), end)


def full_attention_bytes(
    plan: CachePlan, hidden_bytes: int | None = None
) -> tuple[int | None, str]:
    """Bytes of a token if every caching layer kept it for good, and what that means in words.

    A layer that attends keeps what it keeps now, but of all tokens. One that doesn't gets the
    mean of those that do. Where none does, it keeps keys and values as wide as the hidden size.
    """
    numbers = {number_in(layer.name) for layer in plan.layers}
    attending: dict[int, int] = defaultdict(int)
    for layer in plan.layers:
        if layer.kind != "state":
            attending[number_in(layer.name)] += layer.bytes_per_token
    if attending:
        missing, mean = len(numbers) - len(attending), sum(attending.values()) / len(attending)
        windows = any(layer.kind == "window" for layer in plan.layers)
        meaning = f"the {len(attending)} layers that attend" + ", without windows" * windows
        if missing:
            meaning += f", and {missing} more with their mean of {mean:,.0f} bytes a token"
        return round(sum(attending.values()) + missing * mean), meaning
    if hidden_bytes is None or not numbers:
        return None, "no layer attends, so there is nothing to compare with"
    return 2 * hidden_bytes * len(numbers), (
        f"{len(numbers)} layers with keys and values as wide as the hidden size, "
        f"{2 * hidden_bytes:,} bytes a token each, since none of the model's own attends"
    )


def _bytes_of(layers: Sequence[LayerPlan], kind: str, length: int) -> int:
    return sum(layer.bytes_for(length) for layer in layers if layer.kind == kind)
