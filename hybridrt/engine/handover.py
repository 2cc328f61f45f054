"""Handing a running request over to another engine, which goes on where it stood."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hybridrt.cache.contents import content_bytes, read_contents, write_contents
from hybridrt.cache.plan import CachePlan, LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.fingerprint import checkpoint_fingerprint
from hybridrt.engine.sequence import Sequence, tree_name
from hybridrt.request import Request, TokenLogprobs

Fingerprint = Mapping[str, Any]
"""What must agree before one engine can go on with the pages of another."""


@dataclass(frozen=True, slots=True)
class SequenceInFlight:
    """One output as far as it has come, and what the cache holds of it.

    `contents` has, per group, the bytes of the first `num_computed` tokens that later
    ones see; it is empty for a sequence that waits or has finished.
    """

    index: int
    seed: int
    token_ids: tuple[int, ...]
    num_computed: int
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    cumulative_logprob: float
    contents: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class RequestInFlight:
    """A request on its way, as a plain value that pickles."""

    request: Request
    sequences: tuple[SequenceInFlight, ...]
    fingerprint: Fingerprint


def fingerprint(plan: CachePlan, directory: Path) -> Fingerprint:
    """The checkpoint's files and every layer's format, as plain values."""
    layers = {layer.name: _format(layer) for layer in plan.layers}
    return {**checkpoint_fingerprint(directory), **layers}


def check_fingerprint(own: Fingerprint, other: Fingerprint) -> None:
    """Refuses another engine's pages by the first thing that differs.

    Raises:
        ValueError: names the layer or the file, and both values.
    """
    for name in [*own, *(name for name in other if name not in own)]:
        if own.get(name) != other.get(name):
            raise ValueError(
                f"the request comes from an engine in which {name} differs: {other.get(name)}, "
                f"here {own.get(name)}; both should run the same checkpoint in the same formats"
            )


def take_down(sequence: Sequence, pages: SequencePages, pool: Pool) -> SequenceInFlight:
    """A copy of one sequence and of its pages; both stay as they are."""
    name, num_computed, contents = sequence.sequence_id, 0, {}
    if name in pages:
        num_computed = sequence.num_computed
        contents = read_contents(pool, pages.tables(name), num_computed)
    return SequenceInFlight(
        index=sequence.index,
        seed=sequence.seed,
        token_ids=tuple(sequence.token_ids),
        num_computed=num_computed,
        logprobs=None if sequence.logprobs is None else tuple(sequence.logprobs),
        prompt_logprobs=(
            None if sequence.prompt_logprobs is None else tuple(sequence.prompt_logprobs)
        ),
        cumulative_logprob=sequence.cumulative_logprob,
        contents=contents,
    )


def take_up(
    sequence: Sequence,
    came: SequenceInFlight,
    pages: SequencePages,
    pool: Pool,
    rope_switch_length: int | None,
) -> None:
    """Gives a new sequence what another was when it was taken down, pages included.

    Raises:
        OutOfPages: there is no room; nothing was changed.
        ValueError: contents are not of the size that this pool needs.
    """
    _check_sizes(came, pool.plan)
    if came.num_computed:
        salt = sequence.request.cache_salt
        tree = tree_name(salt, len(came.token_ids), rope_switch_length)
        pages.resume(sequence.sequence_id, came.num_computed, tree)
        write_contents(pool, pages.tables(sequence.sequence_id), came.contents)
    for token in came.token_ids[sequence.num_prompt_tokens :]:
        sequence.append(token)
    sequence.num_computed = came.num_computed
    sequence.logprobs = None if came.logprobs is None else list(came.logprobs)
    sequence.prompt_logprobs = None if came.prompt_logprobs is None else list(came.prompt_logprobs)
    sequence.cumulative_logprob = came.cumulative_logprob


def _check_sizes(came: SequenceInFlight, plan: CachePlan) -> None:
    if not came.num_computed:
        return
    for name, size in content_bytes(plan).items():
        given = came.contents[name].shape[1]
        if given != size:
            raise ValueError(f"group {name!r}: rows of {given} bytes came, {size} are right here")


def _format(layer: LayerPlan) -> Mapping[str, Any]:
    names = ("kind", "mixer", "page_size", "kernel_block_size", "states")
    return {name: getattr(layer, name) for name in names}
