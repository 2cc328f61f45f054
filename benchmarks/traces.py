"""Traces: the requests of a workload, written as random seeds and lengths.

A trace is a file of JSON lines in order of arrival:

    {"id": "r0", "prompt": [[seg, len], ...], "output": [seg, len]}

`[seg, len]` is the first `len` of the 65,536 tokens that the seed `seg` draws, so that a
file of a few kilobytes gives everyone the same tokens.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

SEGMENT_TOKENS = 65_536

Tokens = Int64[np.ndarray, " tokens"]


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """A prompt, and the output that it is to get."""

    id: str
    prompt: Tokens
    output: Tokens

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in order of arrival.

    Raises:
        ValueError: a line is not a request; it is named.
    """
    requests: list[TraceRequest] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            requests.append(_read_request(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error!r}") from None
    return requests


def _read_request(fields: dict[str, Any]) -> TraceRequest:
    prompt = np.concatenate([segment(*part) for part in fields["prompt"]])
    output = segment(*fields["output"])
    if not len(prompt) or not len(output):
        raise ValueError("prompt and output should have at least one token each")
    return TraceRequest(fields["id"], prompt, output)


def segment(seed: int, length: int) -> Tokens:
    """The first `length` tokens of a segment.

    Raises:
        ValueError: the segment is not that long.
    """
    if not 0 <= length <= SEGMENT_TOKENS:
        raise ValueError(f"length {length} of segment {seed} should be in 0..{SEGMENT_TOKENS}")
    return _whole_segment(seed)[:length].copy()  # a view would keep all of it


@lru_cache(maxsize=128)
def _whole_segment(seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(100, 100_000, size=SEGMENT_TOKENS)


def ideal_tokens(requests: Iterable[TraceRequest]) -> int:
    """Prompt tokens that no cache could do better than to find, over all requests.

    Of each request it is the longest prefix that an earlier one has too, in its prompt
    and output together, and at most all but the last token, which has to be computed.
    Earlier is by arrival: an upper bound if requests run side by side.
    """
    seen, total = PrefixTree(), 0
    for request in requests:
        total += min(seen.longest_prefix(request.prompt), len(request.prompt) - 1)
        seen.insert(np.concatenate([request.prompt, request.output]))
    return total


@dataclass(slots=True)
class PrefixTree:
    """A set of token sequences. `edges[t]` is a run of tokens from t on, and what follows it."""

    edges: dict[int, tuple[Tokens, "PrefixTree"]] = field(default_factory=dict)

    def longest_prefix(self, tokens: Tokens) -> int:
        """The most tokens that `tokens` begins with and a sequence in the set does too."""
        node, depth = self, 0
        while depth < len(tokens) and int(tokens[depth]) in node.edges:
            run, node = node.edges[int(tokens[depth])]
            same = _num_equal(run, tokens[depth:])
            depth += same
            if same < len(run):
                break
        return depth

    def insert(self, tokens: Tokens) -> None:
        """Adds a sequence."""
        node = self
        while len(tokens):
            first = int(tokens[0])
            run, child = node.edges.setdefault(first, (tokens, PrefixTree()))
            same = _num_equal(run, tokens)
            if same < len(run):  # they part inside the run: cut it there
                tail = PrefixTree({int(run[same]): (run[same:], child)})
                node.edges[first] = (run[:same], tail)
                child = tail
            node, tokens = child, tokens[same:]


def _num_equal(a: Tokens, b: Tokens) -> int:
    """How many tokens `a` and `b` have in common from the first on."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length
