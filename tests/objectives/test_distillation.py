"""A student and its teacher."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, batch, built, check_adds_up, learn, model, noise, pieces, rows_of

from anyformer.core import Frame, Model, ModelSpec
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, EncoderDecoder, Stack
from anyformer.models.quantised import Quantised
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.matches.hidden import HiddenMatch
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.transformations import flat
from anyformer.objectives.words import read_pair
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention

LABEL = torch.tensor([0, 2, 1, 1, 0, 2])
TAGS = torch.randint(-1, 3, (6, 9), generator=noise(4))
INNER = [Classify(classes=3), Classify(classes=3, language=0.5), TokenLabels(classes=3)]


def distillation(inner: Objective, alpha: float = 0.3, temperature: float = 3.0) -> Distillation:
    return Distillation(objective=inner, teacher="runs/teacher", alpha=alpha, temperature=temperature)


def taught(objective: Distillation, student: ModelSpec, teacher: ModelSpec | None = None) -> dict[str, Model]:
    """The student, and a teacher with the head that the objective needs."""
    return built(objective, student, objective.objective.adapt(teacher or model(Decoder, depth=3)))


def given(inner: Objective) -> Batch:
    raw = batch(tags=TAGS, label=LABEL) if isinstance(inner, TokenLabels) else batch(label=LABEL)
    return inner.prepare(raw, WORDS, noise())


@pytest.mark.parametrize("inner", INNER, ids=["classes", "classes and words", "tags"])
def test_micro_batches_add_up(inner: Objective) -> None:
    objective, whole = distillation(inner), given(inner)
    check_adds_up(objective, taught(objective, model(Decoder)), whole, pieces(whole))


@pytest.mark.row("OPT-12", clause="the loss equals the equation written out")
@pytest.mark.parametrize("shape", [Decoder, EncoderDecoder], ids=["in one row", "by an encoder"])
def test_translations_are_distilled_word_by_word(shape: type[ModelSpec]) -> None:
    def pair(depth: int) -> ModelSpec:
        return (
            model(Decoder, depth=depth) if shape is Decoder else EncoderDecoder(encoder=model(), decoder=cross(depth))
        )

    objective = distillation(Seq2Seq(), temperature=2.0)
    models, whole = taught(objective, pair(2), pair(3)), objective.prepare(batch(source=True), WORDS, noise())
    logits = []
    for name in ("model", "teacher"):
        reading, read = read_pair(models[name], whole)
        logits.append(models[name].output_head()(reading.h, reading.frame))
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * (by_hand(*logits, 2.0) * read.weight).sum())
    check_adds_up(objective, models, whole, pieces(whole))


@pytest.mark.row("OPT-12")
@pytest.mark.parametrize(("student", "teacher"), [(Decoder, EncoderDecoder), (EncoderDecoder, Decoder)])
def test_one_may_read_a_pair_in_one_row_and_the_other_not(student: type[ModelSpec], teacher: type[ModelSpec]) -> None:
    specs = {Decoder: model(Decoder), EncoderDecoder: pair_model()}
    objective = distillation(Seq2Seq(), temperature=2.0)
    models, whole = (
        taught(objective, specs[student], specs[teacher]),
        objective.prepare(batch(source=True), WORDS, noise()),
    )
    words = []
    for name in ("model", "teacher"):
        reading, read = read_pair(models[name], whole)
        words.append(models[name].output_head()(reading.h, reading.frame)[read.weight > 0])  # in the order of the text
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * by_hand(*words, 2.0).sum())
    assert term.weight == objective.counts(whole)["teacher"] == len(words[0])


def test_probabilities_are_compared_a_few_places_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = distillation(NextToken())
    models, whole = taught(objective, model(Decoder)), objective.prepare(batch(), WORDS, noise())
    sums, slopes = [], []
    for at_once in (1024, 5):
        monkeypatch.setattr("anyformer.objectives.divergence.AT_ONCE", at_once)
        sums.append(objective.loss(models, whole, noise())["teacher"].sum)
        slopes.append(torch.autograd.grad(sums[-1], list(models["model"].parameters())))
    torch.testing.assert_close(*sums)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)


def cross(depth: int) -> Decoder:
    branches = (Branch(part=Attention(heads=2)), Branch(part=Cross(part=Attention(heads=2))), Branch(part=MLP()))
    return replace(model(Decoder), stack=Stack(blocks={"layer": Block(branches=branches)}, depth=depth))


def by_hand(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
    return temperature**2 * (p * (p.log() - q.log())).sum(-1)


@pytest.mark.row(
    "OPT-12",
    clause=(
        "alpha T^2 KL(teacher || student) at temperature T + (1 - alpha) CE",
        "the loss equals the equation written out",
    ),
)
def test_classes_are_distilled_by_the_equation() -> None:
    objective = distillation(Classify(classes=3))
    models, whole = taught(objective, model(Decoder)), given(objective.objective)
    student, teacher = (models[name](whole.tokens, whole.frame).y for name in ("model", "teacher"))
    terms = objective.loss(models, whole, noise())
    torch.testing.assert_close(terms["teacher"].sum, 0.3 * by_hand(student, teacher, 3.0).sum())
    torch.testing.assert_close(terms["label"].sum, 0.7 * F.cross_entropy(student, LABEL, reduction="sum"))
    assert terms["teacher"].weight == terms["label"].weight == 6


@pytest.mark.row("OPT-12")
def test_pairs_read_both_ways_are_distilled_by_their_sum() -> None:
    objective = distillation(SentencePairs(classes=3, order="both"))
    models = taught(objective, model(Decoder))
    whole = objective.prepare(batch(source=True, label=LABEL), WORDS, noise())
    rows = flat(whole)
    scores = (models[name](rows.tokens, rows.frame).y.view(6, 2, 3).sum(1) for name in ("model", "teacher"))
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * by_hand(*scores, 3.0).sum())
    check_adds_up(objective, models, whole, pieces(whole))


@pytest.mark.row("OPT-12", clause="the loss equals the equation written out")
def test_tags_are_distilled_where_they_count() -> None:
    objective = distillation(TokenLabels(classes=3))
    models, whole = taught(objective, model(Decoder)), given(objective.objective)
    student, teacher = (models[name](whole.tokens, whole.frame).y for name in ("model", "teacher"))
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * (by_hand(student, teacher, 3.0) * whole.weight).sum())
    assert term.weight == whole.weight.sum()


@pytest.mark.row("OPT-12")
def test_the_teacher_does_not_learn_and_does_not_drop() -> None:
    objective = distillation(Classify(classes=3))
    models, whole = taught(objective, model(Decoder), model(Decoder, dropout=0.5)), given(objective.objective)
    for each in models.values():
        each.train()
    first, second = (objective.loss(models, whole, noise())["teacher"].sum for _ in range(2))
    assert torch.equal(first, second)
    first.backward()
    assert all(parameter.grad is None for parameter in models["teacher"].parameters())
    assert all(parameter.grad is not None for parameter in models["model"].parameters())


ENSEMBLE = ("runs/one", "runs/two", "runs/three")


def ensemble(inner: Objective) -> Distillation:
    return Distillation(objective=inner, teacher=ENSEMBLE, alpha=0.3, temperature=3.0)


def mean_by_hand(student: torch.Tensor, teachers: list[torch.Tensor], temperature: float) -> torch.Tensor:
    p, q = (
        torch.stack([(each / temperature).softmax(-1) for each in teachers]).mean(0),
        (student / temperature).softmax(-1),
    )
    return temperature**2 * (p * (p.log() - q.log())).sum(-1)


@pytest.mark.row("OPT-12")
@pytest.mark.parametrize("inner", [Classify(classes=3), TokenLabels(classes=3)], ids=["classes", "tags"])
def test_several_teachers_teach_the_mean_of_their_probabilities(inner: Objective) -> None:
    objective, whole = ensemble(inner), given(inner)
    models = taught(objective, model(Decoder))
    names = ["teacher", "teacher_2", "teacher_3"]
    assert dict(objective.pretrained) == dict(zip(names, ENSEMBLE, strict=True)) and {*models} == {"model", *names}
    student, *teachers = (models[name](whole.tokens, whole.frame).y for name in ("model", *names))
    assert not torch.equal(teachers[0], teachers[1])
    weight = torch.ones(6) if isinstance(inner, Classify) else whole.weight
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * (mean_by_hand(student, teachers, 3.0) * weight).sum())
    check_adds_up(objective, models, whole, pieces(whole))


def test_teachers_of_different_shapes_agree_on_the_words_of_the_target() -> None:
    objective = Distillation(objective=Seq2Seq(), teacher=ENSEMBLE[:2], alpha=0.3, temperature=2.0)
    models = taught(objective, model(Decoder), pair_model())
    models["teacher_2"] = taught(distillation(Seq2Seq()), model(Decoder), model(Decoder, depth=3))["teacher"]
    whole, words = objective.prepare(batch(source=True), WORDS, noise()), []
    for name in models:
        reading, read = read_pair(models[name], whole)
        words.append(models[name].output_head()(reading.h, reading.frame)[read.weight > 0])
    term = objective.loss(models, whole, noise())["teacher"]
    torch.testing.assert_close(term.sum, 0.3 * mean_by_hand(words[0], words[1:], 2.0).sum())


def test_an_ensemble_has_a_teacher_and_its_layers_are_not_copied() -> None:
    with pytest.raises(SpecError, match="teacher: names no run"):
        Distillation(objective=Classify(classes=3), teacher=())
    with pytest.raises(SpecError, match="one teacher is copied, and there are 3"):
        replace(ensemble(Classify(classes=3)), matches=(HiddenMatch(),))


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it() -> None:
    objective = distillation(Classify(classes=3), alpha=1.0)
    teacher = taught(objective, model(Decoder))["teacher"]
    terms = objective.loss({"model": teacher, "teacher": teacher}, given(objective.objective), noise())
    assert terms["teacher"].sum.abs() < 1e-6 and terms["label"].sum == 0


def test_what_does_not_fit_is_named() -> None:
    classes = distillation(Classify(classes=3))
    with pytest.raises(SpecError, match="teacher has 50 tokens, the student 40"):
        classes.check_pretrained("teacher", model(Decoder).with_("vocab", 50), model(Decoder))
    with pytest.raises(SpecError, match="teacher: runs/teacher has a tied head, and classify needs classifier"):
        classes.check_pretrained("teacher", model(Decoder), model(Decoder))
    with pytest.raises(SpecError, match="runs/teacher is quantised"):
        classes.check_pretrained("teacher", Quantised(model=model(Decoder)), model(Decoder))
    for inner in (MultipleChoice(), Contrastive()):
        with pytest.raises(SpecError, match=f"words, classes or tags; {inner.kind} has none"):
            distillation(inner).adapt(model(Decoder))
    with pytest.raises(SpecError, match=r"teacher: .*next_token.*reads one text"):
        distillation(NextToken()).check_pretrained("teacher", pair_model(), model(Decoder))


def error(student: Model, tokens: torch.Tensor, wanted: torch.Tensor) -> float:
    with torch.no_grad():
        return (student(tokens, Frame()).y.softmax(-1)[:, 1] - wanted).abs().mean().item()


@pytest.mark.slow
@pytest.mark.row("OPT-12", clause="on a toy task the distilled student beats one trained without")
def test_a_student_with_a_teacher_beats_one_without() -> None:
    """Labels are coins whose bias is the text's: few texts say little, the teacher's probabilities all."""
    inner = Classify(classes=2)
    raw = torch.randint(10, WORDS.size, (256, 4))
    chance = ((raw.float() - 25) / 8).mean(1).sigmoid()
    made = inner.prepare(
        Batch(tokens=raw, frame=Frame(), labels=RowLabels(label=torch.bernoulli(chance).long())), WORDS, noise()
    )
    objective = distillation(inner, alpha=0.9, temperature=2.0)
    models = taught(objective, model(Decoder, depth=1), model(Decoder, depth=1))
    learn(inner, {"model": models["teacher"].requires_grad_()}, [made], steps=60)  # on all texts
    models["teacher"].requires_grad_(False)
    few = rows_of(made, 0, 32, of=256)
    errors = {}
    for name, each in (("with", objective), ("without", inner)):
        models["model"] = built(inner, model(Decoder, depth=1))["model"]
        learn(each, {key: models[key] for key in models if name == "with" or key == "model"}, [few], steps=120)
        errors[name] = error(models["model"], made.tokens[32:], chance[32:])
    assert errors["with"] < 0.8 * errors["without"], errors
