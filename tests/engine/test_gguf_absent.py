"""Without the package `gguf`, a GGUF file says what to install."""

import sys
from pathlib import Path

import pytest

from hybridrt import LLM


def test_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ImportError, match=r"model.gguf: .*pip install 'hybridrt\[gguf\]'"):
        LLM(str(tmp_path / "model.gguf"))
