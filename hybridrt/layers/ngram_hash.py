"""The numbers by which n-grams are hashed, as Qwen4-Exp makes them from its config."""

from math import isqrt

_ALL_BITS = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_LARGEST = 2**63 - 1


def _splitmix(value: int) -> int:
    """One number of SplitMix64 (Steele, Lea and Flood 2014), whose state was `value`."""
    value = (value + _STEP) & _ALL_BITS
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL_BITS
    return value ^ (value >> 31)


def hash_multipliers(vocab_size: int, ngram_size: int, index: int, seed: int) -> list[int]:
    """Odd numbers, one for each token of an n-gram, of which none overflows with a token.

    `index` counts the layers that have n-grams.
    """
    bound = max(1, _LARGEST // vocab_size // 2)
    start = seed + 10_007 * index
    drawn = (_splitmix((start + _STEP * (i + 1)) & _ALL_BITS) for i in range(ngram_size))
    return [2 * (value % bound) + 1 for value in drawn]


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes that are `start` or more."""
    found: list[int] = []
    while len(found) < count:
        if _is_prime(start):
            found.append(start)
        start += 1
    return found


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, isqrt(value) + 1))
