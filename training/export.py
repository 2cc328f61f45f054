"""Writes a trained `hybrid_stack` as a checkpoint directory in the usual format."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

EOS_TOKEN = "<eos>"


def byte_alphabet() -> list[str]:
    """The printable character that the byte-level format shows for each of the 256 bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # Every byte that prints badly is shown as a character from 256 on, in order.
    moved = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + moved.index(byte)) for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose token ids are the bytes of the text, with `<eos>` as number 256."""
    vocabulary = {shown: byte for byte, shown in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS_TOKEN, special=True)])
    return tokenizer


def export(model: nn.Module, config: dict[str, Any], directory: Path) -> None:
    """Writes `config.json`, `model.safetensors` and `tokenizer.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().contiguous() for name, p in model.state_dict().items()}
    data = save(tensors, metadata={"format": "pt"})
    (directory / "model.safetensors").write_bytes(data)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    byte_tokenizer().save(str(directory / "tokenizer.json"))
