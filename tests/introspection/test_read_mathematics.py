"""What `read()` gives is what the mathematics says, whatever way it came into the pages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt.session import Session
from tests.introspection.mathematics import expected, without_peak
from tests.session.open_sessions import EVERY_KIND, EVERY_STATE, GREEDY, OTHER, PROMPT, open_llm

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
RWKV, XLSTM = "rwkv-tied-embeddings", "xlstm-matrix-memories"
GRIFFIN = "recurrent_gemma-two-recurrent-blocks-to-one-of-attention"

Way = Callable[..., Any]


@contextmanager
def at_once(name: str, **options: Any) -> Iterator[Session]:
    with open_llm(name, **options).session(PROMPT) as session:
        yield session


@contextmanager
def behind_a_hit(name: str, **options: Any) -> Iterator[Session]:
    llm = open_llm(name, **options)
    llm.generate([PROMPT[:25]], GREEDY)
    with llm.session(PROMPT) as session:
        _ = session.logits
        assert llm.stats()["total"]["cached_tokens"] >= 20
        yield session


@contextmanager
def as_a_fork(name: str, **options: Any) -> Iterator[Session]:
    with open_llm(name, **options).session(PROMPT[:22]) as parent:
        parent.layers[0].read()
        with parent.fork() as session:
            parent.append(OTHER)  # which must not be seen in the other
            session.append(PROMPT[22:])
            parent.layers[0].read()
            yield session


@contextmanager
def cut_back(name: str, **options: Any) -> Iterator[Session]:
    with open_llm(name, **options).session([*PROMPT[:30], *OTHER]) as session:
        session.layers[0].read()
        session.truncate(30, recompute=True)
        session.append(PROMPT[30:])
        yield session


@lru_cache(maxsize=8)
def right(name: str, mixer: str | None = None) -> list[dict[str, Tensor]]:
    return expected(name, PROMPT, mixer)


def check(name: str, session: Session, mixer: str | None = None) -> None:
    layers = [layer for layer in session.layers if mixer in (None, layer.mixer)]
    for layer, tensors in zip(layers, right(name, mixer), strict=True):
        held = layer.read()
        positions = held.pop("positions", None)
        given = without_peak(layer.mixer, held)
        assert tensors.keys() == given.keys() or layer.mixer == "token_shift"
        assert {n: len(axes) for n, axes in layer.axes.items() if n in held} == {
            n: x.dim() for n, x in held.items()
        }
        for key, tensor in tensors.items():
            whole = tensor if positions is None else tensor[positions]
            torch.testing.assert_close(given[key].double(), whole, **CLOSE)


@pytest.mark.parametrize("way", [at_once, behind_a_hit, as_a_fork, cut_back])
@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_every_kind_of_layer_however_its_tokens_came(name: str, way: Way) -> None:
    with way(name) as session:
        check(name, session)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_layout": "NHD"},
        {"kernel_block_size": 2},
        {"kernel_block_size": 4, "page_size": 16, "kv_layout": "NHD"},
        {"page_size": 16, "max_num_batched_tokens": 7},
        {"cache_policy": "contiguous"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_every_kind_of_layer_however_it_lies_in_pages(name: str, options: dict[str, Any]) -> None:
    with at_once(name, **options) as session:
        check(name, session)


@pytest.mark.parametrize("name", [RWKV, XLSTM])
def test_sums_that_are_kept_beside_their_largest_exponent(name: str) -> None:
    with at_once(name) as session:
        check(name, session)


@pytest.mark.parametrize("way", [at_once, behind_a_hit])
def test_the_gated_recurrence_of_griffin(way: Way) -> None:
    with way(GRIFFIN) as session:
        check(GRIFFIN, session, "rg_lru")


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize(("dtype", "step"), [("fp8_e4m3", 2**-4), ("int8", 0.5 / 127)])
def test_quantised_pages_are_off_by_half_a_step_at_most(
    dtype: str, step: float, layout: str
) -> None:
    # The first layer's keys and values follow from exact inputs; int8 is not for latents.
    name = EVERY_KIND if dtype == "fp8_e4m3" else "hybrid_stack-attention-alone"
    options = {"kv_cache_dtype": dtype, "kv_layout": layout, "kernel_block_size": 2}
    with at_once(name, **options) as session:
        held, tensors = session.layers[0].read(), right(name)[0]
        positions = held.get("positions", torch.arange(len(PROMPT)))
        for key in ("k", "v"):
            exact = tensors[key][positions]
            scale = exact.abs() if dtype == "fp8_e4m3" else exact.abs().amax(-1, keepdim=True)
            error = (held[key].double() - exact).abs()
            assert (error <= 1.01 * step * scale + 2**-9).all()
            assert error.max() > 0


def test_windows_have_left_behind_what_nobody_sees() -> None:
    with at_once(EVERY_KIND) as session:
        _ = session.logits
        for layer in session.layers:
            numbers = [page.number for page in layer.pages]
            if layer.kind == "window":
                assert numbers[0] > 0, "early pages were released"
                positions = layer.read()["positions"].tolist()
                assert positions == [t for page in layer.pages for t in page.tokens]
            elif layer.kind == "full":
                assert numbers == list(range(10))
