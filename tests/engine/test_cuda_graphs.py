"""Decode steps from CUDA graphs: on a GPU what they give, elsewhere how they are recorded."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt import LLM, EngineConfig, SamplingParams
from hybridrt.batch import ForwardBatch
from hybridrt.engine import cuda_graphs, fast_decode
from hybridrt.engine.cuda_graphs import NotCapturableError, capture, without_host_lengths
from hybridrt.engine.static_decode import StaticBatches, decode_step
from hybridrt.transfer import waiting_raises
from tests.engine.small import small_llm
from tests.harness.engines import assert_all_same, jobs, open_llm, run

MODELS = ["llama-grouped-heads", "bamba-two-groups", "hybrid_stack-every-kind-of-cache"]
SIZES = [1, 2, 4]


class Cuda:
    """What `capture` asks of torch.cuda, in its order. A launched graph runs its step again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[tuple[Any, Any]] = []
        self.launched: list[Any] = []
        self.mode = "default"
        for name in ("graph", "get_sync_debug_mode", "set_sync_debug_mode", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        monkeypatch.setattr(cuda_graphs, "_warm_up", lambda step, batch: step(batch))

    @contextmanager
    def graph(self, graph: Any, pool: Any) -> Iterator[None]:
        self.recorded.append((graph, pool))
        yield

    def graph_pool_handle(self) -> str:
        return "pool"

    def get_sync_debug_mode(self) -> str:
        return self.mode

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode


class Graph:
    """A graph that notes when it is launched."""

    def __init__(self, cuda: Cuda) -> None:
        self.replay = lambda: cuda.launched.append(self)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def batches(llm: LLM) -> StaticBatches:
    groups = llm.plan.groups
    cpu = torch.device("cpu")
    return StaticBatches(groups, SIZES, llm.max_model_len, cpu, switches_rope=False)


def test_each_size_is_recorded_once_the_largest_first_in_one_pool(cuda: Cuda) -> None:
    static, steps = batches(small_llm()), list[tuple[int, str]]()
    of_size = {size: torch.full((size, 3), float(size)) for size in SIZES}

    def step(batch: ForwardBatch) -> Tensor:
        steps.append((batch.num_rows, cuda.mode))
        return of_size[batch.num_rows]

    launch = capture(step, step, static, progress=False)
    # A try, one in which asking the device raises, one to warm up, and the one recorded.
    modes = ["default", "error", "default", "default"]
    assert steps == [(size, mode) for size in SIZES[::-1] for mode in modes]
    assert [pool for _, pool in cuda.recorded] == ["pool"] * 3
    graphs = {size: graph for size, (graph, _) in zip(SIZES[::-1], cuda.recorded, strict=True)}
    for size in SIZES:
        assert launch(static.of(size)) is of_size[size]
        assert cuda.launched[-1] is graphs[size]
    assert len(steps) == 12 and cuda.mode == "default"


def test_a_step_that_depends_on_lengths_in_the_hosts_memory_is_refused(cuda: Cuda) -> None:
    """A record would have the lengths of when it was made."""
    llm = small_llm(attention_backend="reference")
    step = decode_step(llm.engine.model)
    with torch.inference_mode(), pytest.raises(NotCapturableError, match="a step of 4 rows reads"):
        capture(step, step, batches(llm), progress=False)
    assert cuda.mode == "default" and not cuda.recorded


def test_lengths_that_are_not_there_refuse_to_be_read() -> None:
    batch = without_host_lengths(batches(small_llm()).of(2))
    assert batch.num_rows == 2
    for read in (
        lambda: batch.context_lens.numpy(),
        lambda: batch.context_lens.tolist(),
        lambda: int(batch.context_lens.max()),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            read()


def test_what_can_not_be_recorded_runs_as_before_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotCapturableError("a step of 4 rows: it asks")

    monkeypatch.setattr(fast_decode, "capture", refuse)
    monkeypatch.setattr(fast_decode, "StaticBatches", lambda *args, **kwargs: None)
    llm, device = small_llm(), torch.device("cuda")

    def decide(**options: Any) -> Any:
        config = EngineConfig(model="", max_model_len=16, **options)
        args = (config, llm.engine.model, llm.plan.groups, device)
        return fast_decode.fast_decode(*args, progress=False)

    with caplog.at_level("INFO", logger="hybridrt"):
        assert decide() is None
    assert "no CUDA graphs: a step of 4 rows: it asks" in caplog.text
    assert decide(cuda_graphs=False) is None
    with pytest.raises(ValueError, match="cuda_graphs=True: a step of 4 rows: it asks"):
        decide(cuda_graphs=True)


@pytest.mark.gpu
@pytest.mark.parametrize("state_backend", ["triton", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_give_what_steps_without_them_give(name: str, state_backend: str) -> None:
    """At all sizes up to 5, as requests come and go; in a row steps are launched ahead."""
    llm = open_on_gpu(name, state_backend=state_backend)
    for apart, in_a_row in ((0, False), (3, False), (3, True), (0, True)):
        requests = {job: (apart * i, of) for i, (job, of) in enumerate(jobs(name, "cuda").items())}
        with llm.engine.in_a_row() if in_a_row else nullcontext():
            outputs = run(llm, requests)
        assert_all_same(outputs, name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_in_a_decode_step_the_host_waits_for_tokens_alone(name: str, graphs: bool) -> None:
    llm = open_on_gpu(name, cuda_graphs=graphs)
    for i, temperature in enumerate((0.0, 0.7)):
        params = SamplingParams(temperature=temperature, max_tokens=9, ignore_eos=True, logprobs=2)
        llm.add_request([i + 1] * (i + 3), params)
    for _ in range(3):  # what is made at the first decode has been made
        llm.step()
    with waiting_raises():
        outputs = [llm.step() for _ in range(4)]
    assert all(len(of_step) == 2 for of_step in outputs)


def open_on_gpu(name: str, **options: Any) -> LLM:
    backends = {"attention_backend": "triton", "state_backend": "triton", "cuda_graphs": True}
    return open_llm(name, device="cuda", page_size=4, max_num_seqs=5, **{**backends, **options})
