"""`compare` finds mistakes in ports of models: the right layer, and a sensible tensor."""

from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hybridrt import LLM, compare
from hybridrt.introspection.comparison import Comparison
from tests.introspection.fault_table import FAULTS, MAMBA2, Fault
from tests.introspection.faults import LONGEST, half_precision_state
from tests.oracle import tiny_checkpoint

TOKENS = torch.randint(131, (29,), generator=torch.Generator().manual_seed(1)).tolist()
MODELS = sorted({fault.row for fault in FAULTS})


@cache
def oracle(name: str) -> Any:
    """The row's model in transformers."""
    path = tiny_checkpoint(name)
    config = AutoConfig.from_pretrained(path)
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32)


def open_llm(name: str) -> LLM:
    """Small pages and chunks, so that faults that show at their edges show."""
    return LLM(
        str(tiny_checkpoint(name)),
        device="cpu",
        dtype="float32",
        cache_memory="4MiB",
        page_size=4,
        max_model_len=LONGEST,
        max_num_batched_tokens=16,
    )


def against_oracle(llm: LLM, name: str) -> Comparison:
    with llm.session(TOKENS) as session:
        return compare(session, oracle(name))


@pytest.mark.parametrize("name", MODELS)
def test_right_ports_raise_no_alarm(name: str) -> None:
    found = against_oracle(open_llm(name), name)
    assert found.equal, str(found)
    assert not found.notes
    assert {row.name for row in found.rows if row.decides} >= {"embedding", "layer", "logits"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_where_it_is(fault: Fault) -> None:
    llm = open_llm(fault.row)
    model = llm.engine.model
    with torch.no_grad():
        fault.plant(model, None if fault.layer is None else model.model.layers[fault.layer])
    found = against_oracle(llm, fault.row)
    assert found.first is not None, str(found)
    assert found.first.layer == fault.layer, str(found)
    assert any(fnmatch(found.first.name, name) for name in fault.names), str(found)


def test_a_state_of_less_precision_is_found() -> None:
    with half_precision_state("model.layers.1.mixer"):
        found = against_oracle(open_llm(MAMBA2), MAMBA2)
    assert found.first is not None
    assert (found.first.layer, found.first.name) == (1, "ssm_state"), str(found)
