"""Sentence embeddings with the other pairs of the batch as negatives."""

import math

import pytest
import torch
from tests.objectives.small import WORDS, batch, built, check_adds_up, learn, model, noise, rows_of

from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder, EncoderDecoder
from anyformer.objectives.contrastive import Contrastive
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.pools.last import Last
from anyformer.parts.pools.mean import Mean


def expected(objective: Contrastive, a: torch.Tensor, b: torch.Tensor) -> float:
    """The definition, pair by pair."""
    cosine = [[(x @ y / x.norm() / y.norm() / objective.temperature).item() for y in b] for x in a]
    total = 0.0
    for i in range(len(a)):
        there = math.log(sum(math.exp(cosine[i][j]) for j in range(len(b)))) - cosine[i][i]
        back = math.log(sum(math.exp(cosine[j][i]) for j in range(len(a)))) - cosine[i][i]
        total += there if objective.direction == "forward" else (there + back) / 2
    return total


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("group", [None, 4])
def test_it_is_its_definition(direction: str, group: int | None) -> None:
    objective = Contrastive(temperature=0.2, direction=direction, group=group)
    models, pairs = built(objective, model()), objective.prepare(batch(source=True), WORDS, noise())
    a, b = (models["model"](side.tokens, side.frame).y for side in (pairs.source, pairs))
    groups = [slice(0, 6)] if group is None else [slice(0, 4), slice(4, 6)]
    term = objective.loss(models, pairs, noise())["pairs"]
    assert term.sum.item() == pytest.approx(sum(expected(objective, a[g], b[g]) for g in groups), rel=1e-4)
    assert term.weight == 6


@pytest.mark.parametrize("shape", [Decoder, Encoder], ids=["decoder", "encoder"])
def test_micro_batches_of_whole_groups_add_up(shape: type[Decoder] | type[Encoder]) -> None:
    objective = Contrastive(temperature=0.2, direction="both", group=2)
    pairs = objective.prepare(batch(source=True), WORDS, noise())
    pieces = [rows_of(pairs, start, stop, of=6) for start, stop in ((0, 2), (2, 6))]
    check_adds_up(objective, built(objective, model(shape)), pairs, pieces)


def test_without_groups_the_batch_matters_as_declared() -> None:
    objective = Contrastive(temperature=0.2)
    models, pairs = built(objective, model()), objective.prepare(batch(source=True), WORDS, noise())
    whole = objective.loss(models, pairs, noise())["pairs"].sum
    halves = [objective.loss(models, rows_of(pairs, n, n + 3, of=6), noise())["pairs"].sum for n in (0, 3)]
    assert "batch" in objective.limits and whole > sum(halves) + 0.1


@pytest.mark.row("TSK-03", clause="sentence vector is the mean over tokens or the final token's")
def test_the_head_is_a_vector() -> None:
    assert Contrastive().adapt(model()).head == Pooled(pool=Mean())
    assert Contrastive().adapt(model(Decoder)).head == Pooled(pool=Last())
    kept = model(head=Pooled(pool=Last(), layer="tanh"))
    assert Contrastive().adapt(kept) == kept
    with pytest.raises(SpecError, match="contrastive reads one text"):
        Contrastive().adapt(EncoderDecoder(encoder=model(), decoder=model(Decoder)))


def test_single_texts_are_refused() -> None:
    with pytest.raises(DataError, match="needs pairs of texts"):
        Contrastive().prepare(batch(), WORDS, noise())


def test_partners_are_found_after_training() -> None:
    objective = Contrastive(direction="both")
    models, pairs = built(objective, model()), objective.prepare(batch(seed=7, source=True), WORDS, noise())
    learn(objective, models, [pairs], steps=40, lr=0.01)
    term = objective.loss(models, pairs, noise())["pairs"]
    assert term.sum / term.weight < 0.1
