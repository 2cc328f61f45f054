"""Statistics of a trace are what plain computations in float64 give."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch
from safetensors.torch import load_file, save_file

from hybridrt import LLM
from hybridrt.introspection.trace import Trace
from tests.introspection.dense_calls import dense_calls
from tests.oracle.checkpoints import tiny_checkpoint
from tests.session.open_sessions import (
    CHUNKS,
    DEEPSEEK,
    EVERY_KIND,
    EVERY_STATE,
    MAMBA,
    PROMPT,
    WINDOWS,
    open_llm,
)

EVERY = 5
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}
SINKS = "hybrid_stack-sinks-and-unlike-head-sizes"
MLA = "hybrid_stack-latent-attention-of-unlike-geometries"
STACKS = (EVERY_KIND, EVERY_STATE, WINDOWS, CHUNKS, SINKS, MLA)
MEMORIES = ("ssm_state", "kv_state")


def traced(name: str, **options: Any) -> tuple[LLM, Trace]:
    llm = open_llm(name, **options)
    with llm.session() as session:
        return llm, session.trace(PROMPT, every=EVERY, statistics="all")


def intervals(trace: Trace) -> Iterator[tuple[int, slice]]:
    """Each recorded position's place in the trace, and the tokens since the one before."""
    starts = (0, *trace.positions[:-1])
    for row, (start, stop) in enumerate(zip(starts, trace.positions, strict=True)):
        yield row, slice(start, stop)


@pytest.mark.parametrize("name", STACKS)
def test_entropy_and_mass_of_attention(name: str, monkeypatch: MonkeyPatch) -> None:
    calls, (llm, trace) = dense_calls(name, PROMPT, monkeypatch), traced(name)
    layers = [i for i in trace.layers if llm.plan.layers[i].mixer in ("attention", "mla")]
    for index, weights in zip(layers, calls.weights, strict=False):
        given = trace.statistics[index]
        for row, position in enumerate(trace.positions):
            query = position - 1
            of_query, of_tokens = weights[:, query], weights[:, query, :-1]
            expected = {
                "attention_entropy": torch.special.entr(of_query).sum(-1),
                "attention_first": of_tokens[:, 0],
                "attention_last": of_tokens[:, max(0, query - 16) : query].sum(-1),
                "attention_own": of_tokens[:, query],
            }
            for key, values in expected.items():
                np.testing.assert_allclose(given[key][row], values.numpy(), **CLOSE, err_msg=key)
    assert layers


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_decays_and_half_lives(name: str, monkeypatch: MonkeyPatch) -> None:
    calls, (llm, trace) = dense_calls(name, PROMPT, monkeypatch), traced(name)
    mixers = ("mamba1", "mamba2", "gated_delta_net", "kda")
    layers = [i for i in trace.layers if llm.plan.layers[i].mixer in mixers]
    for index, log_decay in zip(layers, calls.log_decays, strict=True):
        by_channel = llm.plan.layers[index].mixer == "mamba1"
        for row, tokens in intervals(trace):
            logs = log_decay[tokens].numpy()
            decay = np.exp(logs.mean(0)) if by_channel else np.exp(logs).mean(0)
            given = trace.statistics[index]
            np.testing.assert_allclose(given["decay"][row], decay.mean(-1), **CLOSE)
            half_life = np.log(2) / -logs.mean((0, -1))
            np.testing.assert_allclose(given["half_life"][row], half_life, **CLOSE)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE, MAMBA])
def test_norms_ranks_and_saturation_of_states(name: str) -> None:
    llm, trace = traced(name)
    before: dict[int, np.ndarray] = {}
    for row, position in enumerate(trace.positions):
        with llm.session(PROMPT[:position]) as session:
            layers = [layer.read() for layer in session.layers]
        for index in trace.layers:
            memory = next((m for m in MEMORIES if m in layers[index]), None)
            if memory is None:
                continue
            state = layers[index][memory].double().numpy()
            given = trace.statistics[index]
            matrices, heads = (state, state) if state.ndim == 3 else (state[None], state.T)
            ranks = [effective_rank(matrix) for matrix in matrices]
            norms = np.array([np.linalg.norm(head) for head in heads])
            last = before.get(index, np.zeros_like(heads))
            change = np.array([np.linalg.norm(head) for head in heads - last])
            both = norms + np.array([np.linalg.norm(head) for head in last])
            np.testing.assert_allclose(given["state_norm"][row], norms, **CLOSE)
            np.testing.assert_allclose(given["effective_rank"][row], ranks, **CLOSE)
            np.testing.assert_allclose(given["saturation"][row], 1 - change / both, **CLOSE)
            before[index] = heads
    assert before


def effective_rank(matrix: np.ndarray) -> float:
    """Roy & Vetterli, EUSIPCO 2007, equations 2 to 4."""
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (EVERY_KIND, {}),
        (EVERY_KIND, {"kv_layout": "NHD"}),
        (EVERY_KIND, {"kv_cache_dtype": "fp8_e4m3"}),
        (WINDOWS, {"kv_cache_dtype": "int8"}),
        (DEEPSEEK, {}),
    ],
)
def test_norms_of_what_is_cached_of_tokens(name: str, options: dict[str, Any]) -> None:
    _, trace = traced(name, **options)
    whole = open_llm(name, **options, page_size=64).session(PROMPT).layers
    for index in trace.layers:
        held = whole[index].read()
        parts = [held[key].double() for key in ("k", "v", "c_kv", "k_pe") if key in held]
        if not parts:
            continue
        parts = [part if part.dim() == 3 else part[:, None] for part in parts]
        norms = torch.cat(parts, dim=-1).norm(dim=-1).numpy()
        for row, tokens in intervals(trace):
            given = trace.statistics[index]["kv_norm"][row]
            np.testing.assert_allclose(given, norms[tokens].mean(0), **CLOSE)


def test_constant_steps_give_the_half_lives_that_one_can_work_out(tmp_path: Path) -> None:
    """Without weights in the projection, dt is softplus of its bias: the same at all tokens."""
    source = tiny_checkpoint("hybrid_stack-mamba2-alone")
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    heads = config["layers"][0]["num_heads"]
    bias, A = torch.linspace(-6, 1, heads), torch.linspace(0.2, 3, heads)
    for layer in range(3):
        mixer = f"model.layers.{layer}.mixer"
        tensors[f"{mixer}.in_proj.weight"][-heads:] = 0
        tensors[f"{mixer}.dt_bias"], tensors[f"{mixer}.A_log"] = bias.clone(), A.log()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    log_decay = -(A.double() * torch.log1p(bias.double().exp())).numpy()
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", cache_memory="2MiB", max_model_len=96)
    with llm.session() as session:
        trace = session.trace(PROMPT, every=8)
    for of_layer in trace.statistics.values():
        for row in range(len(trace.positions)):
            np.testing.assert_allclose(of_layer["decay"][row], np.exp(log_decay), rtol=1e-5)
            np.testing.assert_allclose(
                of_layer["half_life"][row], np.log(0.5) / log_decay, rtol=1e-4
            )


def test_a_head_that_does_not_change_is_saturated_and_one_that_is_new_is_not() -> None:
    _, trace = traced("hybrid_stack-lightning-attention-alone")
    for of_layer in trace.statistics.values():
        assert np.allclose(of_layer["saturation"][0], 0, atol=1e-6)
        assert ((of_layer["saturation"] >= 0) & (of_layer["saturation"] <= 1)).all()
        slopes = np.array([2.0 ** (-8 * (h + 1) / 4) for h in range(4)])
        np.testing.assert_allclose(of_layer["half_life"][-1], np.log(2) / slopes, rtol=1e-5)
        assert of_layer["saturation"][-2, 0] < of_layer["saturation"][-2, -1]  # forgets more slowly
