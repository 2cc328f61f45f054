"""Checkpoints of the `mamba_ssm` package: no `model_type`, and a config that says little."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hybridrt import LLM, SamplingParams
from tests.oracle import BY_NAME, tiny_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
PROMPT = [5, 17, 3, 99, 41, 8, 8, 120]

MAMBA = {"d_model": 32, "n_layer": 3, "ssm_cfg": {"d_state": 8}}
MAMBA2 = {
    "d_model": 32,
    "n_layer": 3,
    "d_intermediate": 0,
    "ssm_cfg": {"layer": "Mamba2", "d_state": 16, "headdim": 8, "ngroups": 2, "chunk_size": 8},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "tie_embeddings": False,
}
COMMON = {
    "vocab_size": 131,
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 1,
}
CASES = {"mamba-tied-embeddings": MAMBA, "mamba2-two-groups": MAMBA2}


def _original(name: str, folder: Path, **changes: Any) -> Path:
    """The row's checkpoint with a config as `mamba_ssm` writes it."""
    path = folder / name
    shutil.copytree(tiny_checkpoint(name), path)
    config = {**COMMON, **CASES[name], **changes}
    (path / "config.json").write_text(json.dumps(config))
    return path


def _answer(path: Path) -> Any:
    llm = LLM(str(path), dtype="float32", device="cpu", cache_memory="2MiB")
    return llm.generate(PROMPT, GREEDY)[0].outputs[0].logprobs


@pytest.mark.parametrize("name", CASES)
def test_is_what_the_same_weights_are_under_the_config_of_transformers(
    name: str, tmp_path: Path
) -> None:
    assert _answer(_original(name, tmp_path)) == _answer(tiny_checkpoint(name))


def test_the_vocabulary_is_padded_as_the_embedding_is(tmp_path: Path) -> None:
    name = "mamba-tied-embeddings"
    path = _original(name, tmp_path, vocab_size=129, pad_vocab_size_multiple=131)
    assert _answer(path) == _answer(tiny_checkpoint(name))
    assert BY_NAME[name].config["vocab_size"] == 131


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_layer_idx": [1]}, r"attn_layer_idx=\[1\]"),
        ({"d_intermediate": 64}, "d_intermediate=64"),
        ({"rms_norm": False}, "rms_norm=False"),
        ({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, "model_type=None is not known"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 8, "chunk_size": 8}}, "should be"),
        ({"pad_vocab_size_multiple": 8}, r"embed_tokens.weight is \[131, 32\], should be \[136"),
    ],
)
def test_what_does_not_describe_the_weights_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        _answer(_original("mamba2-two-groups", tmp_path, **changes))
