"""One prefill of a session's tokens through our model, recorded, and what the session holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from hybridrt.cache.plan import LayerPlan
from hybridrt.engine.engine import Engine
from hybridrt.introspection.capture import Calls, recording


@dataclass(frozen=True, slots=True)
class OurRun:
    """What our model gives for a session's tokens, all computed anew.

    Attributes:
        calls: of its modules.
        logits: `[tokens, vocab]`.
        cached: each cached layer of the plan, and what the session itself holds there.
    """

    calls: Calls
    logits: Tensor
    cached: Sequence[tuple[LayerPlan, Mapping[str, Tensor]]]


def run_ours(session: Any) -> OurRun:
    """Runs a scratch session beside `session`, which it leaves as it is.

    Raises:
        ValueError: requests are on their way, which would be in the same batches.
        OutOfPages: there is no room for the scratch session.
    """
    engine: Engine = session._engine
    cached = [(layer.plan, layer.read()) for layer in session.layers]
    if engine.has_unfinished:
        raise ValueError(
            "requests are on their way, and would be recorded too; compare when none are"
        )
    prompt = {"prompt_token_ids": session.token_ids, "cache_salt": f"compare-{uuid4()}"}
    with (
        _plain_forwards(engine),
        recording(engine.model, engine.model.model.layers) as calls,
        type(session).open(engine, session._run, prompt) as scratch,
    ):
        _ = scratch.logits
    hidden = next(call for call in calls if call.module is engine.model)
    rows = hidden.output(len(session.token_ids))
    assert rows is not None
    with torch.inference_mode():
        logits = engine.model.logits(rows)
    return OurRun(calls, logits, cached)


@contextmanager
def _plain_forwards(engine: Engine) -> Iterator[None]:
    """Forwards of modules, one by one: no graph is replayed in their place."""
    runner = engine._runner
    before, runner.static_decode = runner.static_decode, None
    try:
        yield
    finally:
        runner.static_decode = before


def our_dtype(model: nn.Module) -> torch.dtype:
    """That in which the model computes: of its largest matrix."""
    return max(model.parameters(), key=lambda parameter: parameter.numel()).dtype
