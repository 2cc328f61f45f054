"""The sampler, against a plain reference that takes one row and one token at a time."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.engine.logprobs import logprob_columns, token_logprobs
from hybridrt.engine.sampler import SamplingRow, derive_seed, sample, uniform
from hybridrt.request import SamplingParams

VOCAB = 12


def row(
    *,
    seed: int = 0,
    position: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    **params: Any,
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), prompt, output, banned, seed, position)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def distribution(logits: Tensor, r: SamplingRow) -> list[float]:
    """The probabilities that a row draws from, written as the words say it."""
    values = adjusted(logits, r)
    if r.params.temperature == 0:
        return [float(t == int(np.argmax(values))) for t in range(len(values))]
    weights = softmax([v / r.params.temperature for v in values])
    kept = [t for t, w in enumerate(weights) if w >= r.params.min_p * max(weights)]
    kept.sort(key=lambda t: -weights[t])
    if r.params.top_k > 0:
        kept = kept[: r.params.top_k]
    total, nucleus = sum(weights[t] for t in kept), list[int]()
    for t in kept:
        if not nucleus or sum(weights[n] for n in nucleus) < r.params.top_p * total:
            nucleus.append(t)
    mass = sum(weights[t] for t in nucleus)
    return [weights[t] / mass if t in nucleus else 0.0 for t in range(len(weights))]


def adjusted(logits: Tensor, r: SamplingRow) -> list[float]:
    """Logits behind penalties, bias and bans, in float32 as the sampler has them."""
    params, values = r.params, []
    for token, logit in enumerate(logits.numpy().astype(np.float32)):
        count = np.float32(list(r.output_token_ids).count(token))
        if token in r.prompt_token_ids or count:
            penalty = np.float32(params.repetition_penalty)
            logit = logit / penalty if logit > 0 else logit * penalty
        logit -= np.float32(params.frequency_penalty) * count
        logit -= np.float32(params.presence_penalty) * np.float32(count > 0)
        logit += np.float32((params.logit_bias or {}).get(token, 0.0))
        values.append(-math.inf if token in r.banned else float(logit))
    return values


def softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    weights = [math.exp(value - most) for value in values]
    return [weight / sum(weights) for weight in weights]


def draw_from(probabilities: Sequence[float], u: float) -> int:
    """The first token at which the sum of probabilities is above `u`."""
    total = 0.0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > u:
            return token
    return max(t for t, p in enumerate(probabilities) if p)


def assert_draws_follow_the_reference(r: SamplingRow, logits: Tensor, draws: int = 200) -> None:
    """Of one row at many positions: the numbers drawn reach into every kept token."""
    rows = [replace(r, position=position) for position in range(draws)]
    tokens = sample(logits.expand(draws, -1), rows).tolist()
    probabilities = distribution(logits[0], r)
    numbers = uniform([r.seed] * draws, list(range(draws)))
    expected = [draw_from(probabilities, u) for u in numbers.tolist()]
    assert tokens == expected
    assert {tokens[i] for i in range(draws)} <= {t for t, p in enumerate(probabilities) if p}


params = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([-1, 0, 1, 3, VOCAB, 100]),
        "top_p": st.sampled_from([0.01, 0.3, 0.77, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "presence_penalty": st.sampled_from([-1.5, 0.0, 0.8]),
        "frequency_penalty": st.sampled_from([-0.6, 0.0, 1.1]),
        "repetition_penalty": st.sampled_from([0.6, 1.0, 1.9]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.5])),
    },
)
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)
rows = st.builds(
    lambda params, **fields: row(**params, **fields),
    params=params,
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 10**6),
    prompt=tokens,
    output=tokens,
    banned=st.lists(st.integers(0, VOCAB - 1), max_size=4),
)


@given(rows, st.integers(0, 1000))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_draws_follow_the_reference_under_all_parameters_together(
    r: SamplingRow, seed: int
) -> None:
    assert_draws_follow_the_reference(r, random_logits(1, seed), draws=40)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.1},
        {"top_k": 5, "top_p": 0.8},
        {"min_p": 0.05, "top_k": 4, "top_p": 0.9, "temperature": 1.5},
        {"repetition_penalty": 1.7},
        {"presence_penalty": 1.0, "frequency_penalty": 0.4},
        {"logit_bias": {0: 4.0, 5: -100.0}},
    ],
    ids=str,
)
def test_draws_follow_the_reference_under_each_parameter(given: dict[str, Any]) -> None:
    r = row(seed=5, prompt=[1, 2, 2], output=[3, 3, 4], **given)
    assert_draws_follow_the_reference(r, random_logits(1, seed=7))


@given(st.lists(rows, min_size=1, max_size=6), st.integers(0, 1000), st.randoms())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_batch_draws_what_each_row_draws_alone_in_any_order(
    batch: list[SamplingRow], seed: int, random: Any
) -> None:
    logits = random_logits(len(batch), seed)
    together = sample(logits, batch).tolist()
    alone = [sample(logits[i : i + 1], [r]).item() for i, r in enumerate(batch)]
    assert together == alone
    order = random.sample(range(len(batch)), len(batch))
    shuffled = sample(logits[order], [batch[i] for i in order]).tolist()
    assert shuffled == [together[i] for i in order]


def test_logits_are_left_as_they_were() -> None:
    logits = random_logits(2)
    before = logits.clone()
    sample(logits, [row(top_k=2, logit_bias={1: 5.0}), row(temperature=0.0, banned=[3])])
    assert logits.equal(before)


def test_temperature_0_takes_the_likeliest_and_ignores_the_seed() -> None:
    logits = random_logits(50)
    for seed in (0, 1):
        batch = [row(temperature=0.0, seed=seed, top_k=5, top_p=0.4) for _ in range(50)]
        assert sample(logits, batch).equal(logits.argmax(-1))


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
def test_a_temperature_near_0_takes_the_likeliest(temperature: float) -> None:
    logits = random_logits(20)
    batch = [row(temperature=temperature, seed=i) for i in range(20)]
    assert sample(logits, batch).equal(logits.argmax(-1))


def test_a_high_temperature_takes_all_tokens_alike() -> None:
    batch = [row(temperature=1e300, position=i) for i in range(600)]
    counts = Counter(sample(random_logits(1).expand(600, -1), batch).tolist())
    assert len(counts) == VOCAB and min(counts.values()) > 20


def test_banned_tokens_never_come_whatever_speaks_for_them() -> None:
    logits = torch.zeros(300, VOCAB)
    logits[:, 3] = 1e4
    batch = [row(banned=[3, 7, 3], logit_bias={3: 100.0, 7: 100.0}, position=i) for i in range(300)]
    batch[0] = replace(batch[0], params=SamplingParams(temperature=0.0))
    drawn = set(sample(logits, batch).tolist())
    assert drawn == set(range(VOCAB)) - {3, 7}


def test_a_banned_token_outside_the_vocabulary_is_no_matter() -> None:
    assert sample(random_logits(1), [row(banned=[VOCAB, 10**9], temperature=0.0)]).shape == (1,)


@pytest.mark.parametrize("given", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8}], ids=str)
def test_shares_of_many_draws_are_the_probabilities(given: dict[str, Any]) -> None:
    count, r = 20_000, row(seed=11, **given)
    logits = random_logits(1, seed=3) / 2
    drawn = sample(logits.expand(count, -1), [replace(r, position=i) for i in range(count)])
    observed = torch.bincount(drawn, minlength=VOCAB).tolist()
    expected = [count * p for p in distribution(logits[0], r)]
    assert all(o == 0 for o, e in zip(observed, expected, strict=True) if e == 0)
    distance = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e)
    assert distance < 40  # chi-square with 11 degrees of freedom is above that once in 30,000


def test_uniform_numbers_are_spread_over_seeds_and_positions() -> None:
    for seeds, positions in (([7] * 10_000, range(10_000)), (range(10_000), [7] * 10_000)):
        numbers = uniform(list(seeds), list(positions))
        assert numbers.min() >= 0 and numbers.max() < 1
        shares = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((shares - 500) ** 2 / 500).sum() < 55  # 19 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.04
        assert len(set(numbers.tolist())) == 10_000


def test_a_number_depends_on_its_seed_and_position_alone() -> None:
    together = uniform([3, 2**63 - 1, 0], [0, 5, 10**6])
    alone = [uniform([s], [p])[0] for s, p in ((3, 0), (2**63 - 1, 5), (0, 10**6))]
    assert together.tolist() == alone
    assert uniform([1, 2], [2, 1]).tolist() != uniform([2, 1], [2, 1]).tolist()


def test_derived_seeds_differ_and_are_repeatable() -> None:
    seeds = [derive_seed(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(100)]
    assert len(set(seeds)) == 300 and all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [derive_seed(seed, i) for seed in (0, 1, 2**63 - 1) for i in range(100)]


@given(st.integers(0, 1000), st.lists(st.integers(0, VOCAB), min_size=1, max_size=5), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_logprobs_are_of_the_plain_softmax_with_ranks_from_1(
    seed: int, num_top: list[int], data: st.DataObject
) -> None:
    logits = random_logits(len(num_top), seed)
    chosen = data.draw(st.lists(st.integers(0, 11), min_size=len(num_top), max_size=len(num_top)))
    columns = logprob_columns(logits, torch.tensor(chosen), max(num_top))
    entries = token_logprobs(columns, num_top, lambda token: f"<{token}>")
    for values, token, count, entry in zip(logits.tolist(), chosen, num_top, entries, strict=True):
        likeliest = sorted(range(VOCAB), key=lambda t: -values[t])
        assert list(entry) == list(dict.fromkeys([token, *likeliest[:count]]))
        total = math.log(sum(math.exp(v) for v in values))
        for t, of in entry.items():
            assert of.logprob == pytest.approx(values[t] - total, abs=1e-5)
            assert of.rank == 1 + likeliest.index(t)
            assert of.decoded_token == f"<{t}>"
