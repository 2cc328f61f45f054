"""GGUF files give the model that they were made from, and what isn't known of them is refused.

The files are written as llama.cpp's converters write them (`gguf_files.py`).
"""

import functools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.gguf_files import finish, plainly, write_gguf
from engine.gguf_rows import LLAMA_KEYS, MODELS
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridrt import LLM, SamplingParams
from hybridrt.engine import gguf_file as reader
from hybridrt.engine.checkpoint import locate
from hybridrt.engine.formats import checkpoint_config, checkpoint_tensors
from hybridrt.engine.gguf_file import gguf_file
from hybridrt.engine.weights import checkpoint_dtype
from tests.oracle.checkpoints import random_model
from tests.oracle.rows import Tiny

gguf: Any = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The checkpoint of a name above, as transformers saves it."""

    @functools.cache
    def make(name: str) -> Path:
        model_type, _, config, _ = MODELS[name]
        folder = tmp_path_factory.mktemp("checkpoint")
        model = random_model(Tiny(model_type, name, config))
        model.save_pretrained(folder, save_original_format=True)
        return folder

    return make


def logprobs(path: Path) -> Tensor:
    """Of every token behind each of 20, in float32, and of the tokens generated then."""
    llm = LLM(str(path), cache_memory="8MiB", device="cpu", dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=131)
    output = llm.generate(list(range(3, 23)), params)[0]
    assert output.prompt_logprobs is not None
    rows = [row for row in output.prompt_logprobs if row]
    return torch.tensor([[row[t].logprob for t in range(131)] for row in rows])


def written(checkpoint: Any, name: str, path: Path, **options: Any) -> Path:
    _, architecture, _, keys = MODELS[name]
    keys = {**keys, **options.pop("metadata", {})}
    return write_gguf(checkpoint(name), path, architecture, keys, **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_the_model_that_it_was_made_from(
    name: str, checkpoint: Any, tmp_path: Path
) -> None:
    path = written(checkpoint, name, tmp_path / "model.gguf")
    torch.testing.assert_close(
        logprobs(path), logprobs(checkpoint(name)), rtol=0, atol=2e-5, msg=name
    )


def test_a_folder_with_one_file_is_that_file_and_its_tokenizer(
    checkpoint: Any, tmp_path: Path
) -> None:
    path = written(checkpoint, "llama", tmp_path / "model.gguf")
    assert locate(str(path)) == path
    assert gguf_file(tmp_path) == path == gguf_file(path)
    torch.testing.assert_close(logprobs(tmp_path), logprobs(path), rtol=0, atol=0)
    assert gguf_file(checkpoint("llama")) is None
    shutil.copy(path, tmp_path / "other.gguf")
    with pytest.raises(ValueError, match=r"holds 2 GGUF files \(model.gguf, other.gguf\); name"):
        gguf_file(tmp_path)


def _llama3_factors(rope: dict[str, Any], pairs: int) -> list[float]:
    """By how much each wave is lengthened."""
    factors: list[float] = []
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    for i in range(pairs):
        turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-i / pairs)
        smooth = min(1.0, max(0.0, (turns / (2 * math.pi) - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors


def test_the_scaling_of_llama_3_is_in_a_tensor(checkpoint: Any, tmp_path: Path) -> None:
    source, with_factors = tmp_path / "llama3", tmp_path / "factors"
    shutil.copytree(checkpoint("llama"), source)
    config = json.loads((source / "config.json").read_text())
    rope = {
        "rope_type": "llama3",
        "rope_theta": 1000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    (source / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    shutil.copytree(source, with_factors)
    tensors = load_file(source / "model.safetensors")
    tensors["rope.freqs.weight"] = torch.tensor(_llama3_factors(rope, 8))
    save_file(tensors, with_factors / "model.safetensors")
    path = write_gguf(with_factors, tmp_path / "model.gguf", "llama", LLAMA_KEYS)
    torch.testing.assert_close(logprobs(path), logprobs(source), rtol=0, atol=2e-5)
    assert (logprobs(path) - logprobs(checkpoint("llama"))).abs().max() > 0.1


def _by_hand(data: np.ndarray, kind: str) -> np.ndarray:
    """The definition of a block, number by number."""
    out: list[float] = []
    sizes = {"Q8_0": 34, "Q4_K": 144, "Q6_K": 210}
    for block in data.reshape(-1, sizes[kind]):
        half = functools.partial(np.frombuffer, dtype=np.float16, count=1)
        raw = block.tobytes()
        if kind == "Q8_0":
            numbers = np.frombuffer(raw, np.int8, offset=2)
            out += [float(half(raw)[0]) * int(n) for n in numbers]
        elif kind == "Q4_K":
            scale, least = float(half(raw)[0]), float(half(raw, offset=2)[0])
            packed, nibbles = block[4:16].astype(int), block[16:].astype(int)
            for j in range(8):
                if j < 4:
                    s, m = packed[j] & 63, packed[j + 4] & 63
                else:
                    s = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4)
                    m = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4)
                for i in range(32):
                    n = nibbles[j // 2 * 32 + i] >> (4 * (j % 2)) & 15
                    out.append(scale * s * n - least * m)
        else:
            low, high = block[:128].astype(int), block[128:192].astype(int)
            scales = np.frombuffer(raw, np.int8, count=16, offset=192).astype(int)
            scale = float(half(raw, offset=208)[0])
            for i in range(256):
                part, at, row = i // 128, i % 128 // 32, i % 32
                byte = low[part * 64 + (at % 2) * 32 + row]
                n = (byte >> 4 * (at // 2) & 15) | (high[part * 32 + row] >> 2 * at & 3) << 4
                out.append(scale * int(scales[i // 16]) * (n - 32))
    return np.array(out, dtype=np.float32)


def _random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes of any value, scales of a sensible size."""
    draw = np.random.default_rng(7)
    size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = draw.integers(0, 256, (rows, columns // size, type_size), dtype=np.uint8)
    halves = {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]
    for at in halves:
        scale = draw.uniform(1e-4, 1e-3, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scale[..., None].view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("at_once", [1, 700, 2**20])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.0.ffn_up.weight"])
def test_blocks_are_decoded_as_they_are_defined(
    name: str, kind: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_DECODED_AT_ONCE", at_once)
    data = _random_blocks(kind, 8, 512)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_head_count(2)
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(writer)
    ((ours, tensor),) = checkpoint_tensors(tmp_path / "x.gguf").items()
    assert tensor.shape == (8, 512)
    decoded: Tensor = tensor.decode(torch.float32)  # pyright: ignore
    expected = torch.from_numpy(_by_hand(data, kind)).view(8, 512)
    if "q_proj" in ours:
        expected = expected.view(2, 2, 2, 512).transpose(1, 2).reshape(8, 512)
    torch.testing.assert_close(decoded, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "jamba", "granite with experts"])
@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16"])
def test_a_model_in_blocks_is_that_of_the_numbers_they_stand_for(
    kind: str, name: str, checkpoint: Any, tmp_path: Path
) -> None:
    number = gguf.GGMLQuantizationType[kind]

    def coded(tensor: Tensor) -> bool:
        return tensor.dim() > 1 and tensor.shape[-1] % 32 == 0

    def encode(named: str, tensor: Tensor) -> tuple[np.ndarray, Any]:
        if "ssm_a" in named or "norm" in named or not coded(tensor):
            return plainly(named, tensor)
        return gguf.quants.quantize(tensor.float().contiguous().numpy(), number), number

    path = written(checkpoint, name, tmp_path / "model.gguf", encode=encode)
    rounded = tmp_path / "rounded"
    shutil.copytree(checkpoint(name), rounded)
    tensors = load_file(rounded / "model.safetensors")
    for key, tensor in tensors.items():
        if coded(tensor) and not key.endswith(("A_log", "conv1d.weight")):
            data = gguf.quants.quantize(tensor.float().numpy(), number)
            tensors[key] = torch.from_numpy(gguf.quants.dequantize(data, number).copy())
    save_file(tensors, rounded / "model.safetensors")
    torch.testing.assert_close(logprobs(path), logprobs(rounded), rtol=0, atol=2e-5)


def test_matrices_decide_in_which_dtype_a_file_is_run(checkpoint: Any, tmp_path: Path) -> None:
    kinds = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "Q8_0": "bfloat16"}
    for kind, dtype in kinds.items():
        number = gguf.GGMLQuantizationType[kind]

        def encode(name: str, tensor: Tensor, number: Any = number) -> tuple[np.ndarray, Any]:
            if tensor.dim() == 1:
                return plainly(name, tensor)
            return gguf.quants.quantize(tensor.numpy(), number), number

        path = written(checkpoint, "llama", tmp_path / f"{kind}.gguf", encode=encode)
        assert checkpoint_config(path)["dtype"] == dtype
    assert checkpoint_dtype(tmp_path / "F16.gguf") == "float16"


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("llama", {"attention.sliding_window": 64}, "attention.sliding_window=64, which hybridrt"),
        ("llama", {"rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope', should be"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count is 8, should be 16"),
        ("llama", {"expert_count": 8}, "expert_count is 8, should be 0"),
        ("llama", {"vocab_size": 99}, "vocab_size is 99, should be 131"),
        ("granite without experts", {"rope.scaling.finetuned": True}, "Bamba isn't read"),
        ("jamba", {"attention.head_count_kv": [0, 1, 2, 0]}, r"\[1, 2\], should be one number"),
        ("jamba", {"attention.head_count_kv": [0, 2]}, "should have 4 entries"),
        ("lfm2", {"attention.key_length": 32, "attention.value_length": 32}, "fill the width"),
    ],
)
def test_metadata_that_would_change_the_result_is_refused(
    name: str, keys: dict[str, Any], message: str, checkpoint: Any, tmp_path: Path
) -> None:
    path = written(checkpoint, name, tmp_path / "model.gguf", metadata=keys)
    with pytest.raises(ValueError, match=message):
        checkpoint_config(path)


def _one_tensor(path: Path, architecture: str, name: str, kind: str, **keys: int) -> Path:
    """A file with one tensor, of twos."""
    number = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        writer.add_uint16(key.replace("_", ".", 1), value)
    data = gguf.quants.quantize(np.full((2, 32), 2, np.float32), number)
    writer.add_tensor(name, data, raw_dtype=number)
    finish(writer)
    return path


def test_other_architectures_types_and_parts_are_refused(tmp_path: Path) -> None:
    embedding = "token_embd.weight"
    other = _one_tensor(tmp_path / "a.gguf", "gemma3", embedding, "F32")
    with pytest.raises(ValueError, match="architecture='gemma3' is not known; known are llama, "):
        checkpoint_config(other)
    old = _one_tensor(tmp_path / "b.gguf", "llama", "output.weight", "Q4_0")
    with pytest.raises(ValueError, match=r"'output.weight' is Q4_0; should be F32, F16, BF16, Q8"):
        checkpoint_tensors(old)
    part = _one_tensor(tmp_path / "c.gguf", "llama", embedding, "F32", split_count=3)
    with pytest.raises(ValueError, match="one of 3 parts; should be merged"):
        checkpoint_config(part)
    bare = _one_tensor(tmp_path / "d.gguf", "llama", embedding, "F32", llama_expert_count=0)
    with pytest.raises(ValueError, match=r"llama\.block_count is missing"):
        checkpoint_config(bare)


@pytest.mark.parametrize("length", [0, 3, 20, 200])
def test_a_truncated_file_is_refused_by_name(length: int, checkpoint: Any, tmp_path: Path) -> None:
    path = written(checkpoint, "llama", tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"model\.gguf: truncated or not a GGUF file"):
        checkpoint_config(path)


def test_a_file_cut_in_its_weights_is_refused(checkpoint: Any, tmp_path: Path) -> None:
    path = written(checkpoint, "llama", tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.gguf: truncated"):
        checkpoint_config(path)


def test_nothing_but_a_gguf_file_needs_the_package() -> None:
    code = "import sys, hybridrt.engine.loading; assert 'gguf' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
