"""GPT's input transformations as golden token sequences, and the objectives that use them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.objectives.small import WORDS, batch, built, check_adds_up, ids, learn, model, noise, pieces

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.objective import Objective
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.transformations import Layout, lay, texts

GPT, BERT = Layout(), Layout(form="bert")
START, DELIMITER, EXTRACT = WORDS.bos, WORDS.sep, WORDS.cls
LABEL = torch.tensor([0, 1, 1, 2, 0, 1])
NUMBER = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, 1.5])


def choices(*missing: tuple[int, int]) -> torch.Tensor:
    """Three answers of several lengths for each of six texts, some of them not there."""
    found = torch.zeros(6, 3, 4, dtype=torch.long)
    for row in range(6):
        for place in range(3):
            length = 0 if (row, place) in missing else 1 + (row + place) % 4
            found[row, place, :length] = torch.tensor(ids(length, 7 * row + place))
    return found


@pytest.mark.row(
    "PRE-08",
    clause=(
        "classification is start, text, extract",
        "the token sequence of each of the four tasks is the expected one",
    ),
)
@pytest.mark.row("TSK-07")
def test_classification_is_start_text_extract() -> None:
    assert GPT.one([20, 21, 22], WORDS).ids == [START, 20, 21, 22, EXTRACT]


@pytest.mark.row(
    "PRE-08",
    clause=(
        "entailment joins premise $ hypothesis",
        "the token sequence of each of the four tasks is the expected one",
    ),
)
@pytest.mark.row("TSK-07", clause="input formats of each task equal stored golden ones")
def test_entailment_is_start_premise_delimiter_hypothesis_extract() -> None:
    assert GPT.two([20, 21], [30], WORDS).ids == [START, 20, 21, DELIMITER, 30, EXTRACT]


@pytest.mark.row("PRE-08", clause="the token sequence of each of the four tasks is the expected one")
@pytest.mark.row("TSK-07", clause="input formats of each task equal stored golden ones")
def test_similarity_is_both_orders() -> None:
    there, back = GPT.both([20, 21], [30], WORDS)
    assert there.ids == [START, 20, 21, DELIMITER, 30, EXTRACT]
    assert back.ids == [START, 30, DELIMITER, 20, 21, EXTRACT]


@pytest.mark.row("PRE-08", clause="the token sequence of each of the four tasks is the expected one")
@pytest.mark.row("TSK-07", clause="input formats of each task equal stored golden ones")
def test_multiple_choice_is_the_context_with_each_answer() -> None:
    rows = GPT.choices([20, 21], [[30], [31, 32], [33]], WORDS)
    assert [row.ids for row in rows] == [
        [START, 20, 21, DELIMITER, 30, EXTRACT],
        [START, 20, 21, DELIMITER, 31, 32, EXTRACT],
        [START, 20, 21, DELIMITER, 33, EXTRACT],
    ]


@pytest.mark.row("RNN-18", clause="encoder summary: the state at [CLS]")
@pytest.mark.row("PRE-17")
def test_berts_rows_start_with_cls_and_have_types() -> None:
    assert BERT.one([20, 21], WORDS).ids == [WORDS.cls, 20, 21, WORDS.sep]
    assert lay([BERT.one([20, 21], WORDS)], WORDS).frame.types.tolist() == [[0, 0, 0, 0]]
    pair = [WORDS.cls, 20, 21, WORDS.sep, 30, WORDS.sep]
    assert BERT.two([20, 21], [30], WORDS) == (pair, [0, 0, 0, 0, 1, 1])


@given(st.integers(0, 12), st.integers(0, 12), st.integers(4, 16))
def test_a_row_is_never_longer_than_asked_and_the_longer_text_is_cut(first: int, second: int, longest: int) -> None:
    row = replace(GPT, longest=longest).two(list(range(20, 20 + first)), list(range(60, 60 + second)), WORDS)
    a, b = sum(20 <= i < 60 for i in row.ids), sum(i >= 60 for i in row.ids)
    assert len(row.ids) == min(first + second + 3, longest)
    assert row.ids[1 : 1 + a] == list(range(20, 20 + a)) and row.ids[2 + a : -1] == list(range(60, 60 + b))
    assert (a == first or a >= b - 1) and (b == second or b >= a - 1)


def test_rows_of_any_length_go_there_and_back() -> None:
    rows = [[20, 21, 22], [], [23]]
    made = lay([GPT.one(row, WORDS) for row in rows], WORDS)
    assert made.tokens.tolist()[1] == [START, EXTRACT, WORDS.pad, WORDS.pad, WORDS.pad]
    assert made.frame.valid.sum(1).tolist() == [5, 2, 3]
    assert texts(made, WORDS, "it") == rows


def prepared(objective: Objective, raw: Batch) -> Batch:
    return objective.prepare(raw, WORDS, noise())


@pytest.mark.parametrize(
    "objective",
    [
        SentencePairs(classes=3),
        SentencePairs(classes=3, order="both", language=0.5),
        SentencePairs(classes=1, order="both"),
        MultipleChoice(language=0.5),
    ],
    ids=["entailment", "similarity", "a number", "choices"],
)
def test_micro_batches_add_up(objective: Objective) -> None:
    raw = batch(
        source=isinstance(objective, SentencePairs), label=LABEL, number=NUMBER, choices=choices((1, 2), (4, 1))
    )
    models, whole = built(objective, model(Decoder)), prepared(objective, raw)
    check_adds_up(objective, models, whole, pieces(whole))
    check_adds_up(objective, models, whole, [prepared(objective, piece) for piece in pieces(raw)])


@pytest.mark.row("TSK-07", clause="heads for answers, entailment, similarity and multiple choice")
@pytest.mark.row("PRE-08", clause="the similarity score is the same when the two texts are swapped")
def test_similarity_does_not_depend_on_the_order() -> None:
    raw = batch(source=True, label=LABEL)
    swapped = Batch(tokens=raw.source.tokens, frame=raw.source.frame, source=raw, labels=raw.labels)
    losses = {}
    for order in ("one", "both"):
        objective = SentencePairs(classes=3, order=order)
        models = built(objective, model(Decoder))
        there, back = (objective.loss(models, prepared(objective, pairs), noise()) for pairs in (raw, swapped))
        losses[order] = (there["label"].sum - back["label"].sum).abs().item()
    assert losses["both"] < 1e-5 < 1e-2 < losses["one"]


@pytest.mark.row("PRE-08", clause="similarity feeds both orders and sums them")
def test_the_scores_of_both_orders_are_added() -> None:
    objective, raw = SentencePairs(classes=3, order="both"), batch(source=True, label=LABEL)
    models, total = built(objective, model(Decoder)), torch.zeros(())
    assert raw.source is not None
    for a, b, label in zip(texts(raw.source, WORDS, "it"), texts(raw, WORDS, "it"), LABEL, strict=True):
        rows = ([START, *a, DELIMITER, *b, EXTRACT], [START, *b, DELIMITER, *a, EXTRACT])
        there, back = (models["model"](torch.tensor([row]), Frame()).y[0] for row in rows)
        total -= (there + back).log_softmax(0)[label]
    torch.testing.assert_close(objective.loss(models, prepared(objective, raw), noise())["label"].sum, total)


@pytest.mark.row("PRE-08", clause="multiple choice scores context $ answer_k each, then softmax over k")
def test_answers_are_scored_one_by_one_then_compared() -> None:
    objective, raw = MultipleChoice(), batch(label=LABEL, choices=choices((1, 2)))
    models = built(objective, model(Decoder))
    total = torch.zeros(())
    for context, answers, label in zip(texts(raw, WORDS, "it"), raw.labels.choices.tolist(), LABEL, strict=True):
        rows = [GPT.two(context, [i for i in answer if i], WORDS).ids for answer in answers if any(answer)]
        scores = torch.stack([models["model"](torch.tensor([row]), Frame()).y[0, 0] for row in rows])
        total -= scores.log_softmax(0)[label]
    terms = objective.loss(models, prepared(objective, raw), noise())
    torch.testing.assert_close(terms["label"].sum, total)
    assert terms["label"].weight == 6


def test_an_answer_that_is_not_there_does_not_count() -> None:
    objective = MultipleChoice(language=1.0)
    models = built(objective, model(Decoder))
    two = replace(batch(), labels=RowLabels(label=LABEL % 2, choices=choices()[:, :2]))
    three = replace(batch(), labels=RowLabels(label=LABEL % 2, choices=choices(*((row, 2) for row in range(6)))))
    few, many = (objective.loss(models, prepared(objective, raw), noise()) for raw in (two, three))
    for name in ("label", "words"):
        torch.testing.assert_close(few[name].sum, many[name].sum)
        assert few[name].weight == many[name].weight


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(DataError, match="needs two texts"):
        prepared(SentencePairs(classes=3), batch(label=LABEL))
    with pytest.raises(DataError, match="needs answers to choose from"):
        prepared(MultipleChoice(), batch(label=LABEL))
    with pytest.raises(DataError, match="points to an answer that is empty or not there"):
        prepared(MultipleChoice(), batch(label=LABEL, choices=choices((3, 2))))
    packed = replace(batch(label=LABEL, choices=choices()), frame=Frame(segments=torch.zeros(6, 9, dtype=torch.long)))
    with pytest.raises(DataError, match="packed into one"):
        prepared(MultipleChoice(), packed)
    with pytest.raises(SpecError, match="longest=3 leaves no room"):
        Layout(longest=3)


@pytest.mark.row("TSK-07", clause="each head learns its toy task")
@pytest.mark.parametrize("shape", [Decoder, pytest.param(Encoder, marks=pytest.mark.slow)], ids=["decoder", "encoder"])
def test_the_answer_that_occurs_in_the_text_is_found(shape: type[Decoder] | type[Encoder]) -> None:
    objective, label = MultipleChoice(), torch.randint(3, (192,))
    symbols = torch.stack([torch.randperm(8)[:4] + 10 for _ in label])
    order = (torch.arange(3) - label[:, None]) % 3
    choices = symbols[:, 1:].gather(1, order)[..., None]  # the first of the three stands in the text
    raw = Batch(tokens=symbols[:, :2], frame=Frame(), labels=RowLabels(label=label, choices=choices))
    seen, unseen = (prepared(objective, raw.take(rows)) for rows in torch.arange(192).split([128, 64]))
    models = built(objective, model(shape))
    learn(objective, models, [seen], steps=40, lr=0.01)
    term = objective.loss(models, unseen, noise())["label"]
    assert term.sum / term.weight < 0.5  # a blind guess has log 3 = 1.1
