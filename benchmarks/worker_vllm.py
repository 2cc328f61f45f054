"""vLLM's side of a comparison, through the harness in a folder. See `workers.py`.

It runs in the harness's environment: PYTHON benchmarks/worker_vllm.py FOLDER
"""

import sys
from importlib import import_module
from typing import Any

from workers import Answer, Job, serve

sys.path[0] = sys.argv[1]  # its modules and not ours, some of which have the same names
geometry = import_module("geometry")
peer = import_module("vllm_peer")  # first: it sets vLLM's environment
planning = import_module("vllm_plan")
replaying = import_module("vllm_replay")
traces = import_module("traces")


def plan_of(job: Job) -> Answer:
    """Groups, blocks, and what one decoding request holds and needs."""
    return planning.describe(_plan(job))


def replay_of(job: Job) -> Answer:
    """A trace from a file."""
    requests = traces.load_trace(job["trace"])
    return replaying.replay(_plan(job), requests, job["concurrency"]) | {"vllm": peer.VLLM_VERSION}


def _plan(job: Job) -> Any:
    options = {
        "max_num_seqs": job.get("max_num_seqs", 64),
        "max_num_batched_tokens": job.get("max_num_batched_tokens", 2048),
        "prefix_caching": job.get("enable_prefix_caching", True),
    }
    settings = peer.Settings(geometry.parse_bytes(job["cache_memory"]), **options)
    return peer.plan(geometry.load_geometry(job["geometry"]), settings)


if __name__ == "__main__":
    serve({"plan": plan_of, "replay": replay_of})
