"""The command line: `hybridrt`, or `python -m hybridrt`. One module per command.

Nothing here imports torch before a command needs it, so that `--help` is instant.
"""

import sys


def main() -> None:
    """Runs the command that the arguments name."""
    from hybridrt.cli.app import app

    # A model may write any character, a terminal may not be able to show it.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    app(prog_name="hybridrt")
