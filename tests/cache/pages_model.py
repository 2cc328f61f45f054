"""What a sequence should hold, counted from what `Window.first_visible` means and no more."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from hybridrt.cache.plan import UNENDING, GroupPlan
from hybridrt.cache.spec import Window


@functools.cache
def least_seen(window: Window, position: int) -> int:
    """The first token that is seen by any token from `position` on: tried one by one."""
    later = range(position, position + 2 * window.size + 1)
    return min(window.first_visible(p) for p in later)


@dataclass
class Held:
    """One sequence: how many of its pages were begun in each group, and what is committed."""

    groups: Sequence[GroupPlan]
    begun: list[int]
    committed: int = 0

    @classmethod
    def nothing(cls, groups: Sequence[GroupPlan]) -> "Held":
        return cls(groups, [0] * len(groups))

    def missing(self, num_tokens: int, stop: int | None) -> list[int]:
        """Pages that room for so many tokens takes beyond those that were begun."""
        counts: list[int] = []
        for group, begun in zip(self.groups, self.begun, strict=True):
            end = num_tokens if stop is None or group.window is None else stop
            counts.append(max(0, _pages_of(group, end) - begun))
        return counts

    def extend(self, num_tokens: int, stop: int | None) -> None:
        more = self.missing(num_tokens, stop)
        self.begun = [begun + count for begun, count in zip(self.begun, more, strict=True)]

    def released(self, g: int, committed: int | None = None) -> int:
        """Pages in front of which no token that is still to come sees anything."""
        group = self.groups[g]
        if group.window is None or group.page_size is None:
            return 0
        position = self.committed if committed is None else committed
        return least_seen(group.window, position) // group.page_size

    def releases_at(self, committed: int) -> bool:
        """Whether the last of so many tokens leaves a page behind in some group."""
        return any(
            self.released(g, committed) > self.released(g, committed - 1)
            for g in range(len(self.groups))
        )

    def held(self, g: int) -> int:
        return self.begun[g] - self.released(g)

    @property
    def capacity(self) -> int:
        tokens = [UNENDING]
        for group, begun in zip(self.groups, self.begun, strict=True):
            if group.page_size is not None:
                tokens.append(begun * group.page_size)
            elif begun < group.parts:
                tokens.append(0)
        return min(tokens)

    def fork(self) -> "Held":
        """A sequence with the committed tokens of this one."""
        begun = [_pages_of(group, self.committed) for group in self.groups]
        return Held(self.groups, begun, self.committed)

    def shared(self, g: int) -> int:
        """Of the pages that a fork holds, how many nobody will write into any more."""
        page_size = self.groups[g].page_size
        return 0 if page_size is None else self.committed // page_size - self.released(g)


def _pages_of(group: GroupPlan, num_tokens: int) -> int:
    if group.page_size is None:
        return group.parts if num_tokens else 0
    return sum(1 for token in range(num_tokens) if token % group.page_size == 0)
