"""`compile=True`: decode steps through a compiler give what they give without one."""

import os
from collections.abc import Iterator
from functools import partial
from shutil import which
from typing import Any

import pytest
import torch

from hybridrt import LLM, SamplingParams
from tests.engine.small import small_llm
from tests.harness.engines import assert_all_same, jobs, open_llm, run
from tests.harness.graphs import QUIET, Graphs

pytestmark = QUIET

GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """What the compiler would get; it is run as it is, so that no C++ is compiled."""
    graphs = Graphs()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs))
    monkeypatch.setattr("hybridrt.engine.fast_decode.check_can_compile", lambda *args: None)
    return graphs


@pytest.mark.parametrize("name", ["llama-grouped-heads", "hybrid_stack-every-kind-of-cache"])
def test_tokens_and_logprobs_are_the_same(name: str, graphs: Graphs) -> None:
    """With a graph for each size that comes up, for any positions and page tables."""
    llm = open_llm(name, compile=True, max_num_seqs=5, page_size=4, cache_memory="4MiB")
    requests = {job: (3 * i, of) for i, (job, of) in enumerate(jobs(name).items())}
    assert_all_same(run(llm, requests), name)
    assert len(graphs.traced) == len({1, 2, 4})


@torch._dynamo.config.patch(recompile_limit=2)
def test_more_sizes_than_torch_recompiles_for_by_default(graphs: Graphs) -> None:
    """torch's own limit is 8, and so many graphs take long to trace."""
    llm = small_llm(compile=True, max_num_seqs=8, max_num_batched_tokens=64, cache_memory="16MiB")
    prompts = {n: [[1 + i % 9] for i in range(n)] for n in (1, 2, 4, 8)}
    for batch in prompts.values():
        llm.generate(batch, GREEDY)
    assert len(graphs.traced) == len(prompts) > torch._dynamo.config.recompile_limit


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, at an import
@pytest.mark.skipif(which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
def test_the_code_that_torch_compiles_gives_the_same_tokens() -> None:
    plain, compiled = (small_llm(compile=compiles, max_num_seqs=1) for compiles in (False, True))
    assert _tokens(plain) == _tokens(compiled)


@pytest.mark.usefixtures("graphs")
def test_weights_stay_as_they_are() -> None:
    """A graph can't take them in oneDNN's own layout."""
    llm = small_llm(compile=True, dtype="bfloat16")
    assert not any(p.is_mkldnn for p in llm.engine.model.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compile": True, "quantization": "int8"}, ["compile=True", "quantization='int8'"]),
        ({"cuda_graphs": True}, ["cuda_graphs=True", "'cpu'"]),
    ],
)
def test_options_that_do_not_go_together_are_named(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        small_llm(**options)
    assert all(word in str(error.value) for word in words)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"compile=True needs a C.. compiler.*'no-such-compiler'"):
        small_llm(compile=True)


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridrt.engine.compiled_decode.which", lambda name: name)
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/no/such/folder")
    with pytest.raises(ValueError, match=r"headers.*'/no/such/folder/Python.h'"):
        small_llm(compile=True)


def _tokens(llm: LLM) -> list[Any]:
    return [output.outputs[0].token_ids for output in llm.generate([[1] * 5], GREEDY)]
