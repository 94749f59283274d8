"""Samplers: each filter is Hugging Face's processor, frequencies are the theoretical ones."""

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from anyformer.core import decode
from anyformer.errors import SpecError
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.logit_bias import LogitBias
from anyformer.generation.samplers.min_p import MinP
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Filter, Sampler, SamplingHistory, uniform
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP
from anyformer.generation.samplers.typical import Typical

VOCAB = 37
EVERY = [each for kind in Filter.kinds.values() for each in kind.examples()]
PEERS: list[tuple[Filter, str, Any]] = [
    (TopK(k=5), "TopKLogitsWarper", 5),
    (TopK(k=100), "TopKLogitsWarper", 100),
    (TopP(p=0.6), "TopPLogitsWarper", 0.6),
    (TopP(p=0.01), "TopPLogitsWarper", 0.01),
    (TopP(p=1.0), "TopPLogitsWarper", 1.0),
    (MinP(p=0.1), "MinPLogitsWarper", 0.1),
    (Typical(mass=0.5), "TypicalLogitsWarper", 0.5),
    (Typical(mass=0.95), "TypicalLogitsWarper", 0.95),
    (RepetitionPenalty(penalty=1.7), "RepetitionPenaltyLogitsProcessor", 1.7),
    (RepetitionPenalty(penalty=0.8), "RepetitionPenaltyLogitsProcessor", 0.8),
    (LogitBias(bias={"3": -9.0, "7": 2.5}), "SequenceBiasLogitsProcessor", {(3,): -9.0, (7,): 2.5}),
]


def scores(rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, words so far, and which words these are."""
    words = torch.randint(VOCAB, (rows, 6))
    return 2.5 * torch.randn(rows, VOCAB), words, torch.zeros(rows, VOCAB, dtype=torch.bool).scatter(1, words, True)


@pytest.mark.row("TSK-04", clause="sampling filters equal transformers logits processors")
@pytest.mark.row(
    "PRE-26",
    clause=(
        "top-k keeps the k likeliest tokens",
        "nucleus keeps the smallest set with probability >= p",
        "equals the logits processors of transformers",
    ),
)
@pytest.mark.parametrize(("mine", "name", "argument"), PEERS, ids=lambda value: str(value)[:24])
def test_a_filter_changes_scores_as_its_peer_does(
    transformers: ModuleType, mine: Filter, name: str, argument: Any
) -> None:
    logits, words, seen = scores()
    expected = getattr(transformers, name)(argument)(words, logits.clone())
    torch.testing.assert_close(mine.apply(logits, seen), expected)


@pytest.mark.row("PRE-26", clause=("temperature: softmax(z / T)", "equals the logits processors of transformers"))
def test_filters_and_temperature_compose_as_theirs(transformers: ModuleType) -> None:
    logits, words, seen = scores()
    filters = (LogitBias(bias={"3": 4.0}), RepetitionPenalty(penalty=1.3), TopK(k=9), TopP(p=0.8), MinP(p=0.02))
    theirs = logits.clone()
    for name, argument in (
        ("SequenceBiasLogitsProcessor", {(3,): 4.0}),
        ("RepetitionPenaltyLogitsProcessor", 1.3),
        ("TemperatureLogitsWarper", 0.7),
        ("TopKLogitsWarper", 9),
        ("TopPLogitsWarper", 0.8),
        ("MinPLogitsWarper", 0.02),
    ):
        theirs = getattr(transformers, name)(argument)(words, theirs)
    sampler = Sample(temperature=0.7, filters=filters)
    heights = theirs.softmax(-1).cumsum(-1)
    for number in (0.0, 0.2, 0.5, 0.77, 0.999):
        expected = (heights <= number).sum(-1)
        assert torch.equal(sampler.pick(logits, torch.full((4,), number), seen), expected)


@pytest.mark.row("TSK-04", clause="sampled frequencies fit temperature, top-k and top-p (chi-square)")
@pytest.mark.row(
    "PRE-26", clause=("temperature: softmax(z / T)", "sampled frequencies pass a chi-square test against theory")
)
@pytest.mark.parametrize("filters", [(), (TopK(k=6),), (TopP(p=0.7),)], ids=["all", "top_k", "top_p"])
def test_frequencies_are_the_theoretical_ones(filters: tuple[Filter, ...]) -> None:
    logits, draws = torch.randn(1, 12), 20_000
    kept = logits / 0.8
    for each in filters:
        kept = each.apply(kept, None)
    expected = kept.double().softmax(-1)[0]
    numbers = uniform(torch.arange(draws), torch.tensor([[3]]))[0]
    words = Sample(temperature=0.8, filters=filters).pick(logits.expand(draws, -1), numbers)
    counts = words.bincount(minlength=12)
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    assert chisquare(counts[live].numpy(), (draws * expected[live] / expected.sum()).numpy()).pvalue > 0.001


def test_numbers_are_uniform_over_seeds_and_over_steps() -> None:
    over_seeds = uniform(torch.arange(20_000), torch.tensor([[0]]))[0]
    over_steps = uniform(torch.tensor([5]), torch.arange(5_000)[:, None])[:, 0]
    for numbers in (over_seeds, over_steps):
        assert numbers.min() >= 0.0 and numbers.max() < 1.0
        assert chisquare(torch.histc(numbers, 50, 0.0, 1.0).numpy()).pvalue > 0.001
    neighbours = torch.stack([over_steps[:-1], over_steps[1:]])
    assert torch.corrcoef(neighbours)[0, 1].abs() < 0.05


@pytest.mark.row("TSK-04", clause="top-k with k = 1 equals greedy")
@pytest.mark.row("PRE-26", clause="top-k with k = 1 equals greedy")
def test_one_word_or_no_temperature_is_greedy() -> None:
    logits, _, seen = scores(64)
    best, numbers = logits.argmax(-1), torch.rand(64)
    for sampler in (Greedy(), Sample(temperature=0.0), Sample(filters=(TopK(k=1),)), Sample(filters=(TopP(p=1e-6),))):
        assert torch.equal(sampler.pick(logits, numbers, seen), best)


def test_a_word_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    for number, word in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)):
        assert Sample().pick(logits, torch.tensor([number], dtype=torch.float64)).item() == word


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "sample", "temperature": -0.1}, "temperature"),
        ({"kind": "sample", "temperature": math.nan}, "temperature"),
        ({"kind": "sample", "filters": [{"kind": "top_p", "p": 1.1}]}, "filters[0].p"),
        ({"kind": "sample", "filters": [{"kind": "top_k", "k": 0}]}, "filters[0].k"),
        ({"kind": "sample", "filters": [{"kind": "logit_bias", "bias": {"x": 1.0}}]}, "filters[0].bias.x"),
    ],
)
def test_what_cannot_be_is_refused_by_name(data: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as error:
        decode(Sampler, data)
    assert [problem.path for problem in error.value.problems] == [field]


@pytest.mark.parametrize("make", [lambda: Sample(temperature=math.nan), lambda: TopP(p=1.1), lambda: MinP(p=-1.0)])
def test_values_made_in_python_are_checked_too(make: Any) -> None:
    with pytest.raises(SpecError):
        make()


def test_samplers_are_plain_data_and_back() -> None:
    sampler = Sample(temperature=0.5, filters=(TopK(k=3), LogitBias(bias={"2": 1.0})))
    assert decode(Sampler, sampler.to_dict()) == sampler


def test_a_bias_for_a_word_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match="only 37 tokens"):
        LogitBias(bias={"37": 1.0}).apply(scores()[0], None)


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.kind)
def test_a_choice_depends_on_no_value_or_says_that_it_waits(each: Filter) -> None:
    logits = torch.empty(3, VOCAB, device="meta")  # which has none
    numbers, seen = torch.empty(3, dtype=torch.double, device="meta"), torch.empty_like(logits, dtype=torch.bool)
    for sampler in (Greedy(filters=(each,)), Sample(filters=(each,))):
        assert not sampler.waits and sampler.pick(logits, numbers, seen).shape == (3,)


def test_what_a_captured_graph_reads_of_a_bias_is_made_once() -> None:
    each, logits = LogitBias(bias={"3": 1.0}), scores()[0]
    each.apply(logits, None)
    (row,) = each._rows.values()
    each.apply(logits, None)
    assert next(iter(each._rows.values())) is row and decode(Filter, each.to_dict()) == each


def test_what_is_picked_has_been_seen() -> None:
    logits, _, seen = scores()
    before = seen.clone()
    zeros = torch.zeros(4, dtype=torch.long)
    chosen = SamplingHistory(zeros, zeros, zeros, [seen]).choose(
        Greedy(filters=(RepetitionPenalty(),)), logits, torch.zeros(4)
    )
    assert seen.equal(before.scatter(1, chosen.token[:, None], True))
    unseen = SamplingHistory(zeros, zeros, zeros, []).choose(Greedy(), logits, torch.zeros(4))
    assert unseen.token.equal(logits.argmax(-1))
