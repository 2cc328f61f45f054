"""Where output goes: results to standard output, everything else to standard error."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_LEFT_OUT = " ... "
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def console() -> "Console":
    """Standard output for tables and text in colour, where there is a terminal."""
    from rich.console import Console

    return Console(highlight=False)


def status_console() -> "Console":
    """Standard error, for progress and remarks."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def shows_progress() -> bool:
    """Whether somebody sees standard error as it is written."""
    return sys.stderr.isatty()


def print_json(value: Any) -> None:
    """One line of JSON. A number that JSON does not have becomes null."""
    write(json.dumps(plain(value), allow_nan=False) + "\n")


def write(text: str) -> None:
    """Writes text to standard output at once.

    What a model writes might steer a terminal, so a terminal gets no control characters.
    """
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_written(path: Path, as_json: bool) -> None:
    """Says that a file has been written, and how large it is."""
    num_bytes = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": num_bytes})
    else:
        console().print(f"{path}: {num_bytes:,} bytes", markup=False, soft_wrap=True)


def check_folder(option: str, path: Path) -> None:
    """Refuses a file that can't be written, before work is done for it.

    Raises:
        ValueError: it is a folder, or in no folder that exists; names the option.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{option}={str(path)!r}: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise ValueError(f"{option}={str(path)!r} is a folder; should be a file")


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shortened(text: str, width: int) -> str:
    """The text in one line of at most `width` characters, its middle left out if need be."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    left = width - len(_LEFT_OUT)
    head, tail = left // 2, left - left // 2
    return f"{line[:head]}{_LEFT_OUT}{line[len(line) - tail :]}"
