"""What identifies a checkpoint: its config, tokenizer and weights, without reading all of them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

SAMPLES, SAMPLE_BYTES = 64, 4096  # of each weight file, spread evenly, its ends included


def checkpoint_fingerprint(directory: Path) -> Mapping[str, str]:
    """File name -> SHA-256 of its bytes; of weight files, of their size and samples of them."""
    small = [directory / name for name in ("config.json", "tokenizer.json")]
    digests = {path.name: _digest(path.read_bytes()) for path in small if path.exists()}
    files = [*directory.glob("*.safetensors"), *directory.glob("*.gguf")]
    weights = {path.name: _sampled(path) for path in sorted(files)}
    return digests | weights


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sampled(path: Path) -> str:
    size = path.stat().st_size
    last = max(0, size - SAMPLE_BYTES)
    parts = [size.to_bytes(8, "little")]
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(last * i // (SAMPLES - 1))
            parts.append(file.read(SAMPLE_BYTES))
    return _digest(b"".join(parts))
