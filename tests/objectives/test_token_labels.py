"""A class for each token."""

from dataclasses import dataclass

import pytest
import torch
from tests.objectives.small import WORDS, batch, built, check_adds_up, learn, model, noise, pieces

from anyformer.core import Borrowed, Embedding, Head, HeadSpec, Site
from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.heads.token_classifier import TokenClassifier

TAGS = torch.randint(-1, 3, (6, 9), generator=noise(4))


@pytest.mark.parametrize("shape", [Decoder, Encoder], ids=["decoder", "encoder"])
def test_micro_batches_add_up(shape: type[Decoder] | type[Encoder]) -> None:
    objective = TokenLabels(classes=3)
    prepared = objective.prepare(batch(tags=TAGS), WORDS, noise())
    check_adds_up(objective, built(objective, model(shape)), prepared, pieces(prepared))


@pytest.mark.row("PRE-17")
def test_only_tokens_with_a_tag_count() -> None:
    objective, raw = TokenLabels(classes=3), batch(tags=TAGS)
    models = built(objective, model())
    prepared = objective.prepare(raw, WORDS, noise())
    logits = models["model"](raw.tokens, raw.frame).y.log_softmax(-1)
    places = [(row, t) for row in range(6) for t in range(9) if raw.frame.valid[row, t] and TAGS[row, t] >= 0]
    term = objective.loss(models, prepared, noise())["tags"]
    torch.testing.assert_close(term.sum, -sum(logits[row, t, TAGS[row, t]] for row, t in places))
    assert term.weight == objective.counts(prepared)["tags"] == len(places) < raw.frame.valid.sum()


def test_the_head_is_added_or_kept() -> None:
    objective = TokenLabels(classes=3)
    assert objective.adapt(model()).head == TokenClassifier(classes=3)
    kept = model(head=TokenClassifier(classes=3, hidden=8))
    assert objective.adapt(kept) == kept
    with pytest.raises(SpecError, match="head has 4 classes, the objective 3"):
        objective.adapt(model(head=TokenClassifier(classes=4)))


def test_data_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match="needs a tag for each word"):
        TokenLabels(classes=3).prepare(batch(), WORDS, noise())
    with pytest.raises(DataError, match="below classes=2, got 2"):
        TokenLabels(classes=2).prepare(batch(tags=TAGS), WORDS, noise())


def test_tags_that_need_both_sides_are_learned_by_an_encoder() -> None:
    objective, raw = TokenLabels(classes=2), batch()
    tags = torch.roll(raw.tokens, -1, 1) % 2  # whether the next word is odd
    prepared = objective.prepare(batch(tags=tags.where(raw.frame.valid.roll(-1, 1), -1)), WORDS, noise())
    models = built(objective, model())
    learn(objective, models, [prepared], steps=60, lr=0.01)
    term = objective.loss(models, prepared, noise())["tags"]
    assert term.sum / term.weight < 0.1


def test_a_head_of_ones_own_that_scores_the_classes_of_tokens_is_kept() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(HeadSpec, kind="own_tags"):
        outcomes = 3

        def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> Head:
            return TokenClassifier(classes=3).build(site, embedding, vocab)

    try:
        objective = TokenLabels(classes=3)
        assert objective.adapt(model(head=Own())).head == Own()
        with pytest.raises(SpecError, match="head has 3 classes, the objective 2"):
            TokenLabels(classes=2).adapt(model(head=Own()))
    finally:
        HeadSpec.kinds.pop("own_tags")
