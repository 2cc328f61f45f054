"""Sides of a comparison as processes that answer jobs, each in its own environment.

A job is a line of JSON on a worker's standard input, its answer a line of JSON on its
standard output: `{"error": ...}` where the side can't do it. A worker stays, so that
measurements of two sides can take turns without paying for imports. The standard library
is all that this file needs, since every environment has it.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

Job = Mapping[str, Any]
Answer = dict[str, Any]

LENGTHS = (512, 2048, 8192, 32768)
QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Worker:
    """A side that runs; a context manager that ends it."""

    def __init__(self, *command: str, threads: int = 1) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it

    def ask(self, job: Job) -> Answer:
        """Has a job done.

        Raises:
            RuntimeError: the worker ended, as it does if an import fails.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)


def serve(answers: Mapping[str, Callable[[Job], Answer]]) -> None:
    """The worker's end: does each job by the function under its `what`.

    What the imports have left is taken from the collector's sight, on either side: to look
    through it takes 0.1 s, which would fall on one run in several, whichever it is.
    """
    out, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is no answer
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = answers[job["what"]](job)
        except Exception as error:  # what a side can't do is a result too
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
