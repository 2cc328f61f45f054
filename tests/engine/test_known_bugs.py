"""Bugs of other systems that would show between the scheduler and the model."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from hybridrt import LLM, SamplingParams
from hybridrt.batch import ForwardBatch, StatePages, TokenPages
from hybridrt.transfer import waiting_raises
from tests.engine.small import ATTENTION, MAMBA2, save_checkpoint, small_llm

LONG = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

MIXERS: dict[str, dict[str, Any]] = {
    "attention": ATTENTION,
    "mla": {
        "type": "mla",
        "num_attention_heads": 2,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    },
    "mamba1": {"type": "mamba1", "intermediate_size": 16, "state_size": 4, "time_step_rank": 2},
    "mamba2": MAMBA2,
    "mlp": {"type": "mlp", "intermediate_size": 16},
    "moe": {
        "type": "moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
}


def next_batch(llm: LLM) -> ForwardBatch:
    """What the next step would run."""
    return llm.engine._runner.batches.build(llm.engine._scheduler.schedule())


def test_bug_15_rows_find_their_pages_by_id_and_not_by_place_in_the_batch() -> None:
    llm = small_llm(page_size=8, kernel_block_size=2, max_num_batched_tokens=64)
    ids = [llm.add_request([7] * n, LONG) for n in (9, 3, 17, 5)]
    llm.step()
    for request_id in (ids[0], ids[2]):
        llm.abort(request_id)
    llm.add_request([7] * 4, LONG)  # it takes a page that was freed, or a new one
    llm.step()
    rows = llm.engine._scheduler.schedule()
    batch = llm.engine._runner.batches.build(rows)
    tables = [llm.engine.pages.tables(row.sequence.sequence_id) for row in rows]
    names = [group.name for group in llm.plan.groups]
    states = [dict(zip(names, t, strict=True))["state"].physical_ids[0] for t in tables]
    assert len(rows) == 3
    assert batch.state_pages("state").tolist() == states != [0, 1, 2]
    pages = batch.token_pages("full")
    for row, table in enumerate(dict(zip(names, t, strict=True))["full"] for t in tables):
        blocks = table.kernel_ids.array.tolist()
        assert pages.page_table[row, : len(blocks)].tolist() == blocks
        assert not pages.page_table[row, len(blocks) :].any()
        position = batch.context_lens[row]
        assert pages.slots[row] == blocks[position // 2] * 2 + position % 2


def test_a_batch_says_of_every_token_where_it_stands() -> None:
    llm = small_llm(max_num_batched_tokens=12, page_size=4)
    llm.add_request([10, 11, 12], LONG)
    llm.step()
    llm.add_request(list(range(20, 40)), LONG)
    llm.step()
    batch = next_batch(llm)  # one decode, and the second chunk of a prompt
    assert batch.num_decodes == 1
    assert (batch.query_lens.tolist(), batch.context_lens.tolist()) == ([1, 9], [4, 11])
    assert batch.input_ids[1:].tolist() == list(range(31, 40))
    assert batch.positions.tolist() == [4, *range(11, 20)]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 10] and batch.seq_lens.tolist() == [5, 20]
    assert batch.has_initial_state.tolist() == [True, True]
    assert batch.logits_indices.tolist() == [0, 9]
    assert len(set(batch.token_pages("full").slots.tolist())) == 10
    (prefill,) = batch.prefills
    assert (prefill.row, prefill.start, prefill.stop, prefill.context) == (1, 1, 10, 11)
    assert np.diff(batch.cu_seqlens_q).tolist() == batch.query_lens.tolist()


HOSTS = ("query_lens", "context_lens", "follows")


def converted(batch: ForwardBatch, convert: Any) -> ForwardBatch:
    """The batch with every tensor replaced but those that are the host's."""

    def fields(value: Any) -> dict[str, Tensor]:
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {n: convert(t) for n, t in pairs if isinstance(t, Tensor) and n not in HOSTS}

    groups: dict[str, TokenPages | StatePages] = {
        name: dataclasses.replace(pages, **fields(pages)) for name, pages in batch.groups.items()
    }
    return dataclasses.replace(batch, groups=groups, **fields(batch))


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What looks at the device of a tensor sees CUDA."""
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    # What is the host's stays real, and may be read.
    read = Tensor.numpy

    def numpy(tensor: Tensor) -> np.ndarray:
        with _disable_current_modes():
            return read(tensor)

    monkeypatch.setattr(Tensor, "numpy", numpy)
    # Weights are packed for a CPU alone.
    monkeypatch.setattr("hybridrt.kernels.linear._onednn_takes", lambda weight: False)
    yield


def two_decodes(path: Path, **options: Any) -> LLM:
    llm = small_llm(path, **options)
    for prompt in ([1, 2, 3], [4, 5, 6, 7, 8]):
        llm.add_request(prompt, LONG)
    llm.step()
    return llm


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("mixer", MIXERS)
def test_bug_18_a_decode_step_asks_the_device_for_nothing(mixer: str, tmp_path: Path) -> None:
    # Tensors without values refuse `item`, `tolist`, `if tensor` and shapes that
    # depend on values: all that makes the host wait for a CUDA device.
    path = save_checkpoint(tmp_path / mixer, layers=[MIXERS[mixer]])
    backends = {"attention_backend": "reference", "state_backend": "reference"}
    llm = two_decodes(path, dtype="bfloat16", **backends)
    batch = next_batch(llm)
    assert batch.num_decodes == 2
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.inference_mode():
        fake = converted(batch, mode.from_tensor)
        model = llm.engine.model
        logits = model.logits(model(fake)[fake.logits_indices])
    assert logits.shape == (2, 258)


def test_bug_18_a_tensor_without_values_does_refuse_to_be_read() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensor = mode.from_tensor(torch.tensor([1, 2]))
        for read in (
            lambda: tensor.tolist(),
            lambda: int(tensor.min()),
            lambda: bool((tensor > 1).any()),
            lambda: tensor[tensor > 1],
            lambda: tensor.nonzero(),
        ):
            with pytest.raises(Exception, match="aten"):
                read()


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS)
def test_bug_18_a_decode_step_does_not_wait_for_the_device(mixer: str, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / mixer, layers=[MIXERS[mixer]])
    llm = two_decodes(path, device="cuda", dtype="bfloat16")
    llm.step()  # what is made at the first decode has been made
    rows = llm.engine._scheduler.schedule()
    with waiting_raises(), torch.inference_mode():
        batch = llm.engine._runner.batches.build(rows)
        llm.engine.model.logits(llm.engine.model(batch)[batch.logits_indices])
