"""Layers on a pool of poison, with Triton's kernels and with the reference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt.layers import attention, mla, rope
from tests.harness.bench import Bench, Setting, random_tokens
from tests.harness.layer_rows import BY_REASON
from tests.harness.tolerance import assert_close
from tests.kernels.triton.conftest import IN_INTERPRETER

Place = tuple[str, torch.dtype]


def _steps(reason: str, setting: Setting) -> Tensor:
    """What comes out of a decode row beside a chunk that leaves its state inside, and then."""
    bench, x = Bench(BY_REASON[reason], setting), random_tokens(20, seed=0)
    outs = [bench.step([("old", x[:7])])]
    outs.append(bench.step([("old", x[7:8]), ("new", x[8:17])], {"new": [4]}))
    outs.append(bench.step([("old", x[17:18]), ("new", x[18:])]))
    return torch.cat([part for out in outs for part in out.values()])


@IN_INTERPRETER
@pytest.mark.parametrize(
    "reason",
    [
        *("Mamba-1", "Mamba-1 in heads", "Mamba-2", "short convolution"),
        *("gated delta net", "KDA", "KDA, odd sizes", "RG-LRU"),
    ],
)
def test_layers_with_states(place: Place, reason: str) -> None:
    expected = _steps(reason, Setting())
    assert_close(_steps(reason, Setting(state_backend="triton")), expected)


HND, NHD = Setting(4, 2), Setting(4, 2, "NHD")
INT8, FP8 = replace(NHD, kv_cache_dtype="int8"), replace(HND, kv_cache_dtype="fp8_e4m3")
CASES = [
    *(("attention", setting) for setting in (HND, NHD, INT8, FP8)),
    *(("attention, window", setting) for setting in (NHD, replace(HND, kv_cache_dtype="int8"))),
    *(("attention, soft cap", HND), ("attention, chunks", FP8), ("MLA", HND), ("MLA", FP8)),
    ("gated attention", HND),
]


@IN_INTERPRETER
@pytest.mark.parametrize(("reason", "setting"), CASES)
def test_layers_with_tokens(place: Place, put_in: Any, reason: str, setting: Setting) -> None:
    from hybridrt.kernels.triton.mla_attention import mla_attention
    from hybridrt.kernels.triton.paged_attention import paged_attention
    from hybridrt.kernels.triton.rotate import rotate, rotate_normed
    from hybridrt.kernels.triton.rotate_and_norm import rotate_and_norm
    from hybridrt.kernels.triton.write_pages import write_each

    expected = _steps(reason, setting)
    put_in(attention, "paged_attention", paged_attention)
    put_in(mla, "mla_attention", mla_attention)
    put_in(rope, "rotate", rotate)
    put_in(rope, "rotate_normed", rotate_normed)
    put_in(rope, "rotate_and_norm", rotate_and_norm)
    for module in (attention, mla):
        put_in(module, "write_each", write_each)
    assert_close(_steps(reason, setting), expected)
