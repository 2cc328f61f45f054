"""A small checkpoint with bytes as tokens, engines on it, and scripts in place of its model."""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from hybridrt import LLM
from hybridrt.engine.runner import RowResult
from hybridrt.engine.scheduler import Row
from training.dense import DenseStack, randomise

ATTENTION = {"type": "attention", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
MAMBA2 = {"type": "mamba2", "num_heads": 2, "head_dim": 8, "state_size": 8, "chunk_size": 4}
EOS = 257
VOCAB = 258

CONFIG: dict[str, Any] = {
    "model_type": "hybrid_stack",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
    "bos_token_id": 256,
    "eos_token_id": EOS,
    "dtype": "float32",
    "layers": [ATTENTION, MAMBA2],
}


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hybridrt-small-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def small_checkpoint() -> Path:
    """An attention and a Mamba-2 layer with random weights. Don't write into its folder."""
    return save_checkpoint(_folder() / "small")


def save_checkpoint(path: Path, *, tokenizer: bool = True, **changes: Any) -> Path:
    """Makes the folder of a checkpoint; `changes` are keys of `config.json`."""
    config = {**CONFIG, **changes}
    with torch.random.fork_rng():
        model = DenseStack(config)
    randomise(model, seed=0, spread=2.0)
    path.mkdir(parents=True)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (path / "tokenizer.json").write_text(_bytes_tokenizer().to_str())
    return path


def _bytes_tokenizer() -> tokenizers.Tokenizer:
    """A byte is the token of its number; `<s>` and `</s>` follow."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable}
    vocab |= {chr(0x100 + n): byte for n, byte in enumerate(others)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def small_llm(path: Path | None = None, **options: Any) -> LLM:
    """Small pages and chunks, so that a prompt of some tokens is cut by both."""
    choices: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "page_size": 4,
        "max_num_batched_tokens": 16,
        "cache_memory": "256KiB",
        "poison_freed_pages": True,
        **options,
    }
    return LLM(str(path or small_checkpoint()), **choices)


def tight_llm(num_tokens: int = 40, **options: Any) -> LLM:
    """With a cache that holds one sequence of `num_tokens` and little more."""
    memory = 1024
    while True:
        try:
            llm = small_llm(cache_memory=memory, max_model_len=num_tokens, **options)
        except ValueError:
            memory += 512
        else:
            return llm


def follow_script(llm: LLM, script: Iterable[int] | Callable[[Row], int]) -> None:
    """Lets every output be these tokens, whatever the model would say; pages stay unread."""
    if not callable(script):
        tokens: Sequence[int] = list(script)
        script = lambda row: tokens[row.sequence.num_output_tokens]  # noqa: E731
    choose = script

    def run(rows: Sequence[Row]) -> list[RowResult]:
        return [RowResult(choose(row) if row.samples else None) for row in rows]

    llm.engine._runner.run = run


def assert_nothing_is_held(llm: LLM) -> None:
    """No request, no sequence, no page is left."""
    engine = llm.engine
    assert not llm.has_unfinished and not engine._entries
    assert len(engine.pages) == 0 and engine.num_running == engine.num_waiting == 0
    assert engine.pool.allocator.num_unused_slabs == engine.plan.num_slabs
