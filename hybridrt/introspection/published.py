"""What running engines say about themselves: one small JSON file each, for `hybridrt top`.

The files are in a folder that only this user can read. They have numbers and the model's name,
and nothing of what is asked or answered.
"""

import json
import logging
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psutil

logger = logging.getLogger(__name__)

VERSION = 1
_SAME_START = 2.0  # seconds: start times of one process, asked for twice, differ by less
_numbers = count()  # of the engines in this process


def runtime_folder() -> Path:
    """Where the files are: below `XDG_RUNTIME_DIR` if that is set, else in the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "hybridrt"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"hybridrt-{user}"


class Publisher:
    """Writes one engine's file, as a whole each time, and removes it when the engine is gone.

    A write that fails is told once in the log, and the engine goes on. A child process that was
    forked off leaves the file alone.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        process = psutil.Process()
        self._pid = process.pid
        self._about = {
            "version": VERSION,
            "pid": self._pid,
            "process_started": process.create_time(),
            "started": time.time(),
            **about,
        }
        number = next(_numbers)
        name = f"{self._pid}.json" if not number else f"{self._pid}-{number}.json"
        self.path = runtime_folder() / name
        self._is_told = False
        self._finalizer = weakref.finalize(self, _remove, self.path, self._pid)

    def write(self, row: Mapping[str, Any], details: Mapping[str, Any]) -> None:
        """Replaces the file by what holds now."""
        if os.getpid() != self._pid:
            return
        text = json.dumps({**self._about, "now": row, **details})
        try:
            _make_private(self.path.parent)
            part = self.path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            if not self._is_told:
                logger.warning("hybridrt top won't see this engine: %s", error)
            self._is_told = True

    def close(self) -> None:
        """Removes the file."""
        self._finalizer()


def read_published() -> list[dict[str, Any]]:
    """What all engines of this user that run now have written, the oldest engine first.

    Files of processes that are gone are removed.
    """
    folder = runtime_folder()
    if not folder.is_dir() or not _is_private(folder):
        return []
    found = [engine for path in folder.glob("*.json") if (engine := _read(path)) is not None]
    return sorted(found, key=lambda engine: (engine["started"], engine["pid"]))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        engine = json.loads(path.read_text(encoding="utf-8"))
        if engine["version"] != VERSION:
            return None
        if _runs(engine["pid"], engine["process_started"]):
            return engine
        path.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):  # gone just now, or not one of ours
        pass
    return None


def _runs(pid: int, started: float) -> bool:
    """Whether that process is there, and not another that has its number now."""
    try:
        return abs(psutil.Process(pid).create_time() - started) < _SAME_START
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def _make_private(folder: Path) -> None:
    """Makes sure that the folder is there and that only this user can read it.

    Raises:
        OSError: it can't be made, or is somebody else's or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(f"{folder} should be this user's own, with mode 0700")


def _is_private(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    info = folder.lstat()
    is_open = info.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not is_open


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        for file in (path, path.with_suffix(".part")):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s could not be removed: %s", file, error)
