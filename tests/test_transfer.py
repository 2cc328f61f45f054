"""What samples on a device and scores there asks it for nothing but what it gives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hybridrt import SamplingParams
from hybridrt.engine.logprobs import logprob_columns
from hybridrt.engine.sampler import SamplingRow, sample
from hybridrt.transfer import (
    ALIGNMENT,
    PARCEL,
    HostCopy,
    Shipment,
    _Parcel,
    to_device,
    waiting_raises,
)

CPU = torch.device("cpu")
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
    assert to_device(tensor, CPU) is tensor
    (same,) = HostCopy(tensor).wait()
    assert same is tensor


ARRAYS: tuple[np.ndarray[Any, Any], ...] = (
    np.arange(7),
    np.array([True, False, True]),
    np.zeros(0, np.int64),
    np.arange(12, dtype=np.int32).reshape(3, 4),
    np.arange(12).reshape(3, 4).T,
    np.arange(PARCEL // 8 + 1),
    np.arange(5),
)


def test_a_shipment_stays_where_the_device_is_the_host() -> None:
    shipment = Shipment(CPU)
    assert shipment.add(ARRAYS[0]).data_ptr() == ARRAYS[0].ctypes.data
    shipment.send()


def test_a_parcel_arrives_as_it_was_packed() -> None:
    nearly_full = _Parcel(sum(max(array.nbytes, ALIGNMENT) for array in ARRAYS), CPU)
    added = [nearly_full.add(array) for array in ARRAYS]
    nearly_full.send()
    assert_equal(added)
    begin = added[0].data_ptr()
    assert all((tensor.data_ptr() - begin) % ALIGNMENT == 0 for tensor in added if len(tensor))
    assert nearly_full.room >= 0


def test_small_arrays_share_a_parcel_and_a_large_one_has_its_own() -> None:
    shipment = Shipment(torch.device("meta"))  # which takes copies, and forgets them
    added = [shipment.add(array) for array in ARRAYS]
    shipment.send()
    assert [tuple(tensor.shape) for tensor in added] == [array.shape for array in ARRAYS]
    assert len(shipment._parcels) == 3


@pytest.mark.gpu
def test_a_shipment_arrives_on_a_device_and_nobody_waits_for_it() -> None:
    with waiting_raises():
        shipment = Shipment(torch.device("cuda"))
        added = [shipment.add(array) for array in (*ARRAYS, *ARRAYS)]
        shipment.send()
    assert_equal(added[: len(ARRAYS)])
    assert_equal(added[len(ARRAYS) :])


def assert_equal(tensors: list[torch.Tensor]) -> None:
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        found = tensor.cpu().numpy()
        assert found.dtype == array.dtype and found.shape == array.shape
        assert np.array_equal(found, array)


@pytest.mark.gpu
def test_copies_arrive_and_nobody_waits_for_them_before() -> None:
    device = torch.device("cuda")
    with waiting_raises():
        doubled = to_device(torch.arange(3), device) * 2
        tokens = sample(to_device(torch.eye(5, 16), device), rows())
        copies = HostCopy(doubled, tokens).wait()
    assert copies[0].tolist() == [0, 2, 4]
    assert copies[1].tolist() == sample(torch.eye(5, 16), rows()).tolist()
