"""What a user sees when something goes wrong: one message and an exit code, no traceback."""

import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_FIELD = re.compile(r"^(?:EngineConfig|SamplingParams)\.(\w+)(?:\.\d+)?=", re.MULTILINE)


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turns errors that the user can mend into a message on standard error and exit code 2.

    Ctrl-C, and a reader that has closed the pipe, end the command without a word.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at exit, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, MemoryError, ImportError) as error:
            report(error)
            raise typer.Exit(USER_ERROR) from None

    return run


def report(error: BaseException) -> None:
    """Prints an error for people, with options by the names that they have here."""
    sys.stdout.flush()
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(_FIELD.sub(_option_name, str(error) or type(error).__name__), err=True)


def _option_name(match: re.Match[str]) -> str:
    return f"--{match[1].replace('_', '-')}="
