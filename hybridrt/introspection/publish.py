"""Lets `hybridrt top` see an engine."""

import time

from hybridrt.engine.engine import Engine
from hybridrt.introspection.published import Publisher


def publish(engine: Engine) -> None:
    """Writes what the engine does to this user's file for it, from now on until it is gone."""
    about = {
        "model": engine.config.model,
        "device": str(engine.pool.bytes.device),
        "pool_bytes": engine.plan.pool_bytes,
        "groups": [
            {"name": group.name, "kind": group.kind, "page_bytes": group.page_bytes}
            for group in engine.plan.groups
        ],
    }
    engine.stats_recorder.listener = Publisher(about).write
    engine.stats_recorder.add_row(time.monotonic())
