"""A folder for what several processes of one run of the tests need."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_VARIABLE = "HYBRIDRT_TEST_FOLDER"


def shared_folder() -> Path:
    """The same for this process and those it starts; gone when the one that made it ends."""
    if _VARIABLE not in os.environ:
        folder = os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="hybridrt-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(os.environ[_VARIABLE])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The shared folder's folder of that name, which `make` fills where nobody has made it yet.

    It gets its name when it is whole. Of two processes that make it at once, the second keeps
    what the first made.
    """
    path = shared_folder() / name
    if not path.exists():
        unfinished = Path(tempfile.mkdtemp(dir=path.parent))
        make(unfinished)
        try:
            unfinished.rename(path)
        except OSError:
            shutil.rmtree(unfinished)
            if not path.exists():
                raise
    return path
