"""The draw of tokens against the plain one: the same tokens."""

import pytest
import torch

from hybridrt.kernels.reference import sample as reference

Place = tuple[str, torch.dtype]


@pytest.mark.parametrize("vocab", [1, 37, 4500])
def test_draws_the_tokens_of_the_reference(place: Place, vocab: int) -> None:
    from hybridrt.kernels.triton.sample import sample

    device, dtype = place
    draw = torch.Generator().manual_seed(vocab)
    logits = 2 * torch.randn(vocab, 15, generator=draw).T
    logits[:, ::7] = -torch.inf
    logits[:, vocab // 2] = logits[:, -1] = 5  # the largest twice in some rows
    logits = logits.to(device, dtype)
    temperature = torch.tensor([0.0, 0.4, 1.0, 1.7, 1e-300] * 3, dtype=torch.float64)
    least = torch.tensor([0.0, 0.05, 1.0] * 5, dtype=torch.float64).log()
    uniform = torch.rand(15, generator=draw, dtype=torch.float64)
    uniform[:4] = torch.tensor([0, 1 - 2.0**-53] * 2)
    args = (temperature, least, uniform)
    tokens = sample(logits, *args)
    assert tokens.equal(reference.sample(logits, *args))
    alone = torch.cat([sample(logits[i : i + 1], *(a[i : i + 1] for a in args)) for i in range(4)])
    assert tokens[:4].equal(alone)


@pytest.mark.parametrize("vocab", [1, 37, 4096, 13_000])
def test_the_first_of_the_likeliest(place: Place, vocab: int) -> None:
    from hybridrt.kernels.triton.sample import likeliest

    draw = torch.Generator().manual_seed(vocab)
    logits = torch.randn(vocab, 9, generator=draw).T
    logits[:3, vocab // 3] = logits[:3, vocab // 2] = logits[:3, -1] = 7
    logits[3], logits[4], logits[5] = -torch.inf, torch.inf, 0
    logits = logits.to(*place)
    expected = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert likeliest(logits).equal(expected)
    assert likeliest(logits[2:3]).equal(expected[2:3])


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter
def test_what_is_no_number_is_not_the_likeliest_and_still_a_token(place: Place) -> None:
    from hybridrt.kernels.triton.sample import likeliest

    logits = torch.full((2, 5000), torch.nan, device=place[0], dtype=place[1])
    logits[0, 4321] = -1
    first, second = likeliest(logits).tolist()
    assert first == 4321
    assert 0 <= second < 5000


def test_an_empty_batch_has_no_tokens(place: Place) -> None:
    from hybridrt.kernels.triton.sample import likeliest, sample

    none, logits = torch.empty(0, dtype=torch.float64), torch.empty(0, 9, device=place[0])
    assert sample(logits, none, none, none).shape == likeliest(logits).shape == (0,)
