"""What was reused of the cache, counted, and what the pool holds now."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix import PrefixCache
from hybridrt.engine.sequence import Sequence

logger = logging.getLogger(__name__)

LOGGED_EVERY = 100  # sequences


@dataclass(slots=True)
class Counts:
    """Sequences that began to run, their prompts' tokens, and how the prompts fared."""

    sequences: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, sequence: Sequence) -> None:
        """Counts a sequence that has begun to run."""
        self.sequences += 1
        self.prompt_tokens += sequence.num_prompt_tokens
        self.cached_tokens += sequence.num_cached_tokens
        self.notes[sequence.cache_note or "disabled"] += 1

    def since(self, earlier: "Counts") -> "Counts":
        """What was counted behind `earlier`."""
        return Counts(
            self.sequences - earlier.sequences,
            self.prompt_tokens - earlier.prompt_tokens,
            self.cached_tokens - earlier.cached_tokens,
            self.notes - earlier.notes,
        )

    def data(self) -> dict[str, Any]:
        """As plain values. `hit_rate` is the share of the prompts' tokens."""
        return {
            "sequences": self.sequences,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            "notes": dict(self.notes),
        }


class ReuseStats:
    """Counts from the start, and since they were last asked for."""

    def __init__(self) -> None:
        self.total = Counts()
        self._last_asked = Counts()

    def record(self, sequence: Sequence) -> None:
        """Counts a sequence when it first runs; once in a while says how it goes."""
        self.total.add(sequence)
        if self.total.sequences % LOGGED_EVERY == 0:
            data = self.total.data()
            logger.info(
                "%d sequences, %.1f %% of their prompts' tokens from the cache; %s",
                data["sequences"],
                100 * data["hit_rate"],
                data["notes"],
            )

    def take(self) -> dict[str, Any]:
        """Both as plain values. The interval begins anew."""
        interval = self.total.since(self._last_asked)
        self._last_asked = self.total.since(Counts())
        return {"total": self.total.data(), "interval": interval.data()}


def pool_data(pool: Pool, prefix: PrefixCache | None) -> dict[str, Any]:
    """Bytes by group: in use by sequences, cached for later ones, and free in its slabs."""
    groups: dict[str, dict[str, int]] = {}
    for index, group in enumerate(pool.plan.groups):
        live, cached = (
            pool.allocator.num_live_pages(index),
            pool.allocator.num_cached_pages(index),
        )
        groups[group.name] = {
            "in_use": live * group.page_stride,
            "cached": cached * group.page_stride,
            "free": pool.allocator.num_free_pages(index) * group.page_stride,
        }
    cache = {} if prefix is None else prefix.data()
    free = pool.allocator.num_free_slabs * pool.plan.slab_bytes
    return {"bytes": {"groups": groups, "free_slabs": free}, "cache": cache}
