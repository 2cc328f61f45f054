"""What a result was measured on."""

import subprocess
from typing import Any

from hybridrt.measure.machine import describe


def machine() -> dict[str, Any]:
    """The machine, versions, and the commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return describe() | {"commit": commit}
