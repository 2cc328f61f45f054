"""Whether a saved session can go on in this engine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridrt.cache.contents import content_bytes
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.snapshot import Snapshot


def plain_fingerprint(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint as it comes back from a file: plain JSON values."""
    return json.loads(json.dumps(dict(fingerprint)))


def check_saved(
    path: Path,
    saved: Snapshot,
    fingerprint: Mapping[str, Any],
    plan: CachePlan,
    max_model_len: int,
    vocab_size: int,
) -> None:
    """Refuses a session that was saved by another model, or doesn't fit.

    Raises:
        ValueError: names the file, what differs, and both values.
    """
    ours, theirs = plain_fingerprint(fingerprint), saved.fingerprint
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"{path}: the session comes from an engine in which {name} differs: "
                f"{theirs.get(name)}, here {ours.get(name)}; the same checkpoint in the same "
                f"formats would be right"
            )
    num_tokens = len(saved.token_ids)
    if num_tokens > max_model_len:
        raise ValueError(f"{path}: {num_tokens} tokens; at most max_model_len={max_model_len} fit")
    wrong = next((token for token in saved.token_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ValueError(f"{path}: token id {wrong} should be in [0, {vocab_size})")
    _check_shapes(path, saved, plan, vocab_size)


def _check_shapes(path: Path, saved: Snapshot, plan: CachePlan, vocab_size: int) -> None:
    num_tokens = len(saved.token_ids)
    expected: dict[str, tuple[int, ...]] = {}
    if num_tokens:
        sizes = content_bytes(plan)
        expected = {
            group.name: (group.pages_for(num_tokens, group.first_kept(num_tokens)), size)
            for group, size in zip(plan.groups, sizes.values(), strict=True)
        }
        # All parts of a state are one row.
        expected |= {g.name: (1, sizes[g.name]) for g in plan.groups if g.page_size is None}
        expected["logits"] = (vocab_size,)
    given = {name: tuple(rows.shape) for name, rows in saved.contents.items()}
    if saved.logits is not None:
        given["logits"] = tuple(saved.logits.shape)
    if given != expected:
        raise ValueError(
            f"{path}: it holds {given}; for {num_tokens} tokens it should hold {expected}"
        )
