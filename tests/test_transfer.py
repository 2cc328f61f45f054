"""What samples on a device and scores there asks it for nothing but what it gives."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hybridrt import SamplingParams
from hybridrt.engine.logprobs import logprob_columns
from hybridrt.engine.sampler import SamplingRow, sample
from hybridrt.transfer import HostCopy, to_device, waiting_raises

PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=3),
    SamplingParams(temperature=1.0, min_p=0.1, seed=5),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
    SamplingParams(temperature=0, logit_bias={3: 2.0}),
)


def rows() -> list[SamplingRow]:
    return [SamplingRow(params, (1, 2), (3,), (4,), seed=7, position=1) for params in PARAMS]


def test_sampling_reads_no_values() -> None:
    """Tensors without values refuse all that would make the host wait for a device."""
    with FakeTensorMode() as mode:
        logits = mode.from_tensor(torch.zeros(len(PARAMS), 16))
        tokens = sample(logits, rows())
        columns = logprob_columns(logits, tokens, 2)
    assert [tuple(column.shape) for column in columns] == [(5,), (5,), (5,), (5, 2), (5, 2)]


def test_nothing_is_copied_where_the_device_is_the_host() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, torch.device("cpu")) is tensor
    (same,) = HostCopy(tensor).wait()
    assert same is tensor


@pytest.mark.gpu
def test_copies_arrive_and_nobody_waits_for_them_before() -> None:
    device = torch.device("cuda")
    with waiting_raises():
        doubled = to_device(torch.arange(3), device) * 2
        tokens = sample(to_device(torch.eye(5, 16), device), rows())
        copies = HostCopy(doubled, tokens).wait()
    assert copies[0].tolist() == [0, 2, 4]
    assert copies[1].tolist() == sample(torch.eye(5, 16), rows()).tolist()
