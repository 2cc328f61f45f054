"""A running request goes on in another engine: same tokens, whatever the pools' sizes."""

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridrt import LLM, RequestOutput, SamplingParams
from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.slabs import OutOfPages
from tests.oracle.checkpoints import tiny_checkpoint

EVERY_KIND = "hybrid_stack-every-kind-of-cache"
EVERY_STATE = "hybrid_stack-every-state-between-attention"
PROMPT = [3 + i * 7 % 50 for i in range(37)]
PARAMS = SamplingParams(temperature=0.8, seed=7, max_tokens=24, ignore_eos=True, logprobs=2)

ANOTHER_PROCESS = """
import pickle, sys
from pathlib import Path
from hybridrt import LLM

options, request = pickle.loads(Path(sys.argv[1]).read_bytes())
llm = LLM(**options)
llm.import_request(request)
outputs = []
while llm.has_unfinished:
    outputs += llm.step()
Path(sys.argv[2]).write_bytes(pickle.dumps(outputs[-1]))
"""


def open_engine(name: str, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"page_size": 4, "cache_memory": "2MiB", "max_model_len": 96}
    return LLM(str(tiny_checkpoint(name)), **{**defaults, "poison_freed_pages": True, **options})


def finish(llm: LLM) -> RequestOutput:
    outputs: list[RequestOutput] = []
    while llm.has_unfinished:
        outputs += llm.step()
    return outputs[-1]


def tokens(output: RequestOutput) -> list[Sequence[int]]:
    return [completion.token_ids for completion in output.outputs]


def begun(llm: LLM, steps: int, params: SamplingParams = PARAMS) -> str:
    request_id = llm.add_request(PROMPT, params)
    for _ in range(steps):
        llm.step()
    return request_id


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
@pytest.mark.parametrize("steps", [0, 1, 3, 12, 20])
def test_a_request_goes_on_in_another_engine_with_the_same_tokens(name: str, steps: int) -> None:
    first = open_engine(name, max_num_batched_tokens=16)
    begun(first, 0, SamplingParams(max_tokens=40, ignore_eos=True))  # so that pages differ
    request_id = begun(first, steps)
    came = pickle.loads(pickle.dumps(first.export_request(request_id)))
    others = [open_engine(name), open_engine(name, cache_memory="300KiB", max_num_seqs=3)]
    others[0].generate([[5] * 30, [6] * 17], SamplingParams(max_tokens=3))
    given = []
    for other in others:
        assert other.import_request(came) == request_id
        given.append(finish(other))
    while first.has_unfinished:
        for output in first.step():
            if output.request_id == request_id:
                expected = output
    for output in given:
        assert tokens(output) == tokens(expected)
        assert output.outputs[0].logprobs is not None
        assert [list(step) for step in output.outputs[0].logprobs] == [
            list(step) for step in expected.outputs[0].logprobs or ()
        ]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
def test_a_request_goes_on_in_another_process(tmp_path: Path, kv_cache_dtype: str) -> None:
    options: dict[str, Any] = {"page_size": 4, "cache_memory": "2MiB", "max_model_len": 96}
    options["kv_cache_dtype"] = kv_cache_dtype
    first = open_engine(EVERY_KIND, **options)
    request_id = begun(first, 9)
    model = {"model": str(tiny_checkpoint(EVERY_KIND)), **options, "cache_memory": "1MiB"}
    (tmp_path / "in").write_bytes(pickle.dumps((model, first.export_request(request_id))))
    (tmp_path / "run.py").write_text(ANOTHER_PROCESS)
    command = [sys.executable, tmp_path / "run.py", tmp_path / "in", tmp_path / "out"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], env=_environment())
    output = pickle.loads((tmp_path / "out").read_bytes())
    assert tokens(output) == tokens(finish(first))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def test_several_outputs_of_a_request_go_over_together() -> None:
    params = PARAMS.model_copy(update={"n": 3})
    first, second = open_engine(EVERY_KIND), open_engine(EVERY_KIND, max_num_seqs=2)
    request_id = begun(first, 5, params)
    second.import_request(first.export_request(request_id))
    assert tokens(finish(second)) == tokens(finish(first))


def test_what_differs_is_refused_by_name() -> None:
    first = open_engine(EVERY_KIND)
    came = first.export_request(begun(first, 3))
    for other, message in (
        (open_engine(EVERY_STATE), r"config\.json differs"),
        (open_engine(EVERY_KIND, page_size=8), r"layers\.\d.* differs: .*'page_size': 4.*here"),
        (open_engine(EVERY_KIND, state_dtype="bfloat16"), r"layers\.0.* differs"),
    ):
        with pytest.raises(ValueError, match=message):
            other.import_request(came)
        assert not other.has_unfinished and not len(other.engine.pages)


def test_no_room_and_a_request_that_is_there_already_change_nothing() -> None:
    first = open_engine(EVERY_KIND)
    request_id = begun(first, 3)
    came = first.export_request(request_id)
    with pytest.raises(ValueError, match="is in the engine already"):
        first.import_request(came)
    options: dict[str, Any] = {"enable_prefix_caching": False, "max_model_len": None}
    full = open_engine(EVERY_KIND, cache_memory="100KiB", **options)
    filling = SamplingParams(max_tokens=9, ignore_eos=True)
    while not full.engine.num_waiting:
        full.add_request(PROMPT, filling, f"filling-{len(full.engine.pages)}")
        full.step()
    held = len(full.engine.pages)
    with pytest.raises(OutOfPages):
        full.import_request(came)
    assert len(full.engine.pages) == held
    finish(full)
    full.import_request(came)
    assert tokens(finish(full)) == tokens(finish(first))
    with pytest.raises(ValueError, match="'nobody' is not in the engine"):
        first.export_request("nobody")


def test_regions_are_the_fewest_runs_that_cover_all_layers_of_the_pages() -> None:
    llm = open_engine(EVERY_KIND, kernel_block_size=2)
    regions, pool = llm.cache_regions(), llm.engine.pool.bytes.view(-1)
    assert (regions.address, regions.num_bytes) == (pool.data_ptr(), pool.numel())
    request_id = begun(llm, 6)
    for group, table in zip(
        llm.plan.groups, llm.engine.pages.tables(f"{request_id}/0"), strict=True
    ):
        runs = regions.of(group.name, table.physical_ids)
        covered = torch.zeros(pool.numel(), dtype=torch.bool)
        for offset, length in runs:
            assert not covered[offset : offset + length].any()
            covered[offset : offset + length] = True
        assert all(sum(a) < b[0] for a, b in itertools.pairwise(runs)), "could be one run"
        expected = torch.zeros(pool.numel(), dtype=torch.bool)
        for page in table.physical_ids:
            expected[page * group.page_stride : (page + 1) * group.page_stride] = True
        assert torch.equal(covered, expected)
    stride = llm.plan.group("full").page_stride
    ids = [PhysicalId(page) for page in (4, 3, 9, 5, 4)]
    assert regions.of("full", ids) == [(3 * stride, 3 * stride), (9 * stride, stride)]
    with pytest.raises(ValueError, match="group='none' should be one of"):
        regions.of("none", ids)
    with pytest.raises(ValueError, match="has no page -1"):
        regions.of("full", [PhysicalId(-1)])


def test_a_page_copied_by_its_regions_alone_is_the_page() -> None:
    first, second = open_engine(EVERY_KIND), open_engine(EVERY_KIND)
    request_id = begun(first, 9)
    came = first.export_request(request_id)
    second.import_request(came)
    # The same pages again, this time byte by byte through the regions of either pool.
    sequence = f"{request_id}/0"
    tables = [llm.engine.pages.tables(sequence) for llm in (first, second)]
    pools = [llm.engine.pool.bytes.view(-1) for llm in (first, second)]
    for group, source, target in zip(first.plan.groups, *tables, strict=True):
        for ours, theirs in zip(source.physical_ids, target.physical_ids, strict=False):
            ((begin, length),) = first.cache_regions().of(group.name, [ours])
            ((start, same),) = second.cache_regions().of(group.name, [theirs])
            assert length == same
            pools[1][start : start + same] = pools[0][begin : begin + length]
    assert tokens(finish(second)) == tokens(finish(first))
