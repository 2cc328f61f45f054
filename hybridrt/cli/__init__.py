"""The command line: `hybridrt`, or `python -m hybridrt`. One module per command.

Nothing here imports torch before a command needs it, so that `--help` is instant.
"""

import gc
import sys


def main() -> None:
    """Runs the command that the arguments name."""
    # Nothing of what imports make is garbage, and the collector would look through all of it
    # again and again, a sixth of the time to the first token. `load_llm` turns it on.
    gc.disable()
    from hybridrt.cli.app import app

    # A model may write any character, a terminal may not be able to show it.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    app(prog_name="hybridrt")
