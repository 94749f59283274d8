"""A class or a number for each text, and GPT's words beside it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.small import DIM, LENGTHS, WORDS, batch, built, check_adds_up, learn, model, noise, pieces

from anyformer.core import Frame, HeadSpec, capture
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.errors import DataError, SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.objectives.classify import Classify
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.regress import Regress
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.several import Several
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.pools.attention import AttentionPool
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last

LABEL = torch.tensor([0, 2, 1, 1, 0, 2])
NUMBER = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, 1.5])
CASES = [
    (Classify(classes=3), Encoder),
    (Classify(classes=3), Decoder),
    (Classify(classes=3, language=0.5), Decoder),
    (Regress(), Encoder),
]


@pytest.mark.parametrize(("objective", "shape"), CASES, ids=lambda case: getattr(case, "kind", ""))
def test_micro_batches_add_up(objective: Objective, shape: type[Decoder] | type[Encoder]) -> None:
    models, raw = built(objective, model(shape)), batch(label=LABEL, number=NUMBER)
    whole = objective.prepare(raw, WORDS, noise())
    check_adds_up(objective, models, whole, pieces(whole))
    check_adds_up(objective, models, whole, [objective.prepare(piece, WORDS, noise()) for piece in pieces(raw)])


@pytest.mark.row(
    "PRE-07",
    clause=(
        "label P(y | x) = softmax(h W_y), h from the last layer",
        "loss L2 is the sum of log P(y | x), by the equation",
        "optional loss L3 = L2 + lambda L1 with lambda = 0.5",
        "the classifier reads the state of the last token",
    ),
)
@pytest.mark.row("RNN-18", clause="decoder summary: the state at the last non-pad token")
@pytest.mark.parametrize("language", [0.0, 0.5])
def test_gpts_fine_tuning_is_its_equation(language: float) -> None:
    objective = Classify(classes=3, language=language)
    models, raw = built(objective, model(Decoder)), batch(label=LABEL)
    terms = objective.loss(models, objective.prepare(raw, WORDS, noise()), noise())
    label_sum, words_sum = torch.zeros(()), torch.zeros(())
    for text, length, label in zip(raw.tokens, LENGTHS, LABEL, strict=True):
        row = torch.tensor([WORDS.bos, *text[:length].tolist(), WORDS.cls])
        h = models["model"](row[None], Frame(), logits=False).y[0]
        classes = models["model"].head.named("label").classes
        label_sum -= F.linear(h[-1], classes.weight, classes.bias).log_softmax(-1)[label]  # the final token's state
        for place in range(len(row) - 1):
            words_sum -= (models["model"].embedding.weight @ h[place]).log_softmax(-1)[row[place + 1]]
    torch.testing.assert_close(terms["label"].sum, label_sum)
    if language:
        torch.testing.assert_close(terms["words"].sum, 0.5 * words_sum)
        assert terms["words"].weight == sum(LENGTHS) + 6
    assert (language > 0) == ("words" in terms)


@pytest.mark.row("PRE-17", clause="all parameters are fine-tuned, not only the new layer")
@pytest.mark.row(
    "OPT-16", clause=("all parameters change in training", "the added linear head W_y has the shape (classes, d)")
)
def test_fine_tuning_moves_every_weight_and_adds_one_matrix() -> None:
    objective, given = Classify(classes=3), model(Decoder)
    models = built(objective, given)
    assert models["model"].head.classes.weight.shape == (3, DIM)
    before = {name: value.clone() for name, value in models["model"].named_parameters()}
    assert {name for name in before if not name.startswith("head.")} == {n for n, _ in given.build().named_parameters()}
    learn(objective, models, [objective.prepare(batch(label=LABEL), WORDS, noise())], steps=1)
    assert not any(torch.equal(value, before[name]) for name, value in models["model"].named_parameters())


def topics(texts: int) -> Batch:
    """Each text draws its words from one of two halves of the vocabulary, which is its label."""
    label = torch.randint(2, (texts,))
    tokens = torch.randint(10, 25, (texts, 6)) + 15 * label[:, None]
    return Batch(tokens=tokens, frame=Frame(), labels=RowLabels(label=label))


@pytest.mark.row(
    "XF-14",
    clause=(
        "pre-trained, then fine-tuned beats from scratch with few labels",
        "pre-training runs on unlabelled data before any label is used",
    ),
)
@pytest.mark.slow
@pytest.mark.row("OPT-16", clause="beats training from scratch on a small synthetic set")
def test_a_pre_trained_model_needs_fewer_labels() -> None:
    objective, words, given = Classify(classes=2), NextToken(), model(Decoder)
    few, unseen = (objective.prepare(topics(texts), WORDS, noise()) for texts in (4, 128))
    read = built(words, given)
    unlabelled = words.prepare(replace(topics(256), labels=RowLabels()), WORDS, noise())
    assert unlabelled.labels.label is None
    learn(words, read, [unlabelled], steps=80)
    losses = []
    for start in ({}, read["model"].state_dict()):
        models = built(objective, given)
        models["model"].load_state_dict(start, strict=False)
        learn(objective, models, [few], steps=20)
        losses.append((objective.loss(models, unseen, noise())["label"].sum / 128).item())
    assert losses[1] < 0.5 * losses[0], losses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (model(Decoder), Classifier(classes=3, pool=Last())),
        (model(Encoder), Classifier(classes=3, pool=First())),
        (model(Encoder, head=Pooled(pool=First(), layer="tanh")), Classifier(classes=3, pool=First(), hidden=DIM)),
        (model(Encoder, head=Pooled(pool=AttentionPool())), Classifier(classes=3, pool=AttentionPool())),
        (model(Encoder, head=Classifier(classes=3, pool=Last())), Classifier(classes=3, pool=Last())),
    ],
    ids=["decoder", "encoder", "bert's pooler", "a pool", "as it is"],
)
def test_the_head_follows_from_what_the_model_has(given: Encoder | Decoder, expected: HeadSpec) -> None:
    adapted = Classify(classes=3).adapt(given)
    assert adapted.head == expected
    assert Classify(classes=3).adapt(adapted) == adapted


def test_words_beside_the_class_keep_the_head_that_says_them() -> None:
    objective = Classify(classes=2, language=0.5)
    head = Classifier(classes=2, pool=Last())
    for given, words in ((Untied(), Untied()), (Tied(), Tied()), (Pooled(pool=Last()), Tied())):
        adapted = objective.adapt(model(Decoder, head=given))
        assert adapted.head == Several(heads={"label": head, "words": words}, main="label")
        assert objective.adapt(adapted) == adapted


def test_what_does_not_fit_says_what_would() -> None:
    both = EncoderDecoder(encoder=model(Encoder), decoder=model(Decoder))
    with pytest.raises(SpecError, match=r"Use an encoder or a decoder, .*seq2seq"):
        Classify(classes=2).adapt(both)
    with pytest.raises(
        SpecError, match=r"language=0.5: an encoder sees the words that it should predict. Use a decoder"
    ):
        Classify(classes=2, language=0.5).adapt(model(Encoder))
    with pytest.raises(SpecError, match="head has 5 classes, the objective 2"):
        Classify(classes=2).adapt(model(Encoder, head=Classifier(classes=5, pool=First())))


def test_data_that_do_not_fit_are_named() -> None:
    classify = Classify(classes=2)
    with pytest.raises(DataError, match="needs a label for each text"):
        classify.prepare(batch(), WORDS, noise())
    with pytest.raises(DataError, match=r"from 0 to 1, got \[0, 1, 2\]"):
        classify.prepare(batch(label=LABEL), WORDS, noise())
    with pytest.raises(DataError, match="sentence_pairs"):
        classify.prepare(batch(source=True, label=LABEL), WORDS, noise())
    with pytest.raises(DataError, match="needs a number"):
        Regress().prepare(batch(label=LABEL), WORDS, noise())


def test_numbers_are_taken_before_classes_and_a_class_is_none() -> None:
    assert torch.equal(Regress().prepare(batch(label=LABEL, number=NUMBER), WORDS, noise()).labels.label, NUMBER)
    assert torch.equal(Regress().prepare(batch(label=NUMBER), WORDS, noise()).labels.label, NUMBER)
    double = {name: each.double() for name, each in built(Regress(), model(Encoder)).items()}
    total = Regress().loss(double, Regress().prepare(batch(number=NUMBER), WORDS, noise()), noise())["label"].sum
    total.backward()
    assert total.dtype == torch.float64


def test_regression_is_the_squared_error_of_one_score() -> None:
    models = built(Regress(), model(Encoder))
    prepared = Regress().prepare(batch(number=NUMBER), WORDS, noise())
    scores = models["model"](prepared.tokens, prepared.frame).y
    assert scores.shape == (6, 1)
    terms = Regress().loss(models, prepared, noise())
    torch.testing.assert_close(terms["label"].sum, (scores[:, 0] - NUMBER).square().sum())


@pytest.mark.row(
    "TSK-01",
    clause=(
        "sum_i a_i x_i goes into a positive/negative classifier",
        "toy task: attention mass on the sentiment word > 0.8",
    ),
)
def test_attention_pooling_finds_the_word_that_decides() -> None:
    objective, feelings = Classify(classes=2), torch.tensor([10, 11])  # one word each for bad and for good
    tokens, label, place = torch.randint(12, WORDS.size, (64, 8)), torch.randint(2, (64,)), torch.randint(8, (64,))
    tokens.scatter_(1, place[:, None], feelings[label][:, None])
    prepared = objective.prepare(Batch(tokens=tokens, frame=Frame(), labels=RowLabels(label=label)), WORDS, noise())
    alone = Stack(blocks={"layer": Block(branches=(Branch(part=MLP()),))}, depth=1)  # every word speaks for itself
    models = built(objective, replace(model(head=Classifier(classes=2, pool=AttentionPool())), stack=alone))
    learn(objective, models, [prepared], steps=150, lr=0.02)
    with capture(models["model"], "head.pool.pattern") as seen:
        terms = objective.loss(models, prepared, noise())
    (weights,) = seen["head.pool.pattern"]
    assert terms["label"].sum / terms["label"].weight < 0.05
    assert weights.gather(1, 1 + place[:, None]).min() > 0.8  # one further: <bos> stands in front
