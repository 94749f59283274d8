"""Several objectives on one model."""

import math

import pytest
import torch
from tests.objectives.small import WORDS, batch, built, check_adds_up, learn, model, noise, pieces

from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.mixture import Mixture, MixtureTask
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.regress import Regress
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.heads.several import Several
from anyformer.parts.heads.untied import Untied

LABEL, WHOSE = torch.tensor([0, 2, 1, 1, 0, 1]), torch.tensor([0, 0, 1, 2, 1, 2])
TAGS = torch.randint(-1, 3, (6, 9), generator=noise(4))
NUMBER = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, 1.5])
THREE = {
    "topic": MixtureTask(objective=Classify(classes=3), scale="log_classes"),
    "mood": MixtureTask(objective=Classify(classes=2), weight=2.0, scale="log_classes"),
    "tags": MixtureTask(objective=TokenLabels(classes=3), scale="log_classes"),
}
BY_TASK = Mixture(tasks=THREE, rows="task")


def raw(**labels: torch.Tensor):
    return batch(label=LABEL, tags=TAGS, number=NUMBER, task=WHOSE, **labels)


def test_micro_batches_add_up_even_where_a_task_is_absent() -> None:
    models, whole = built(BY_TASK, model()), BY_TASK.prepare(raw(), WORDS, noise())
    assert [piece.parts.keys() for piece in pieces(whole)] == [{"topic"}, {"topic", "mood", "tags"}, {"mood", "tags"}]
    check_adds_up(BY_TASK, models, whole, pieces(whole))
    check_adds_up(BY_TASK, models, whole, [BY_TASK.prepare(piece, WORDS, noise()) for piece in pieces(raw())])


@pytest.mark.row("SST-03", clause="scaled losses are all 1 at uniform prediction")
def test_at_a_blind_guess_every_scaled_loss_is_its_weight() -> None:
    models = built(BY_TASK, model())
    for head in models["model"].head.heads.values():
        head.classes.weight.data.zero_()
        head.classes.bias.data.zero_()
    terms = BY_TASK.loss(models, BY_TASK.prepare(raw(), WORDS, noise()), noise())
    means = {name: (term.sum / term.weight).item() for name, term in terms.items()}
    assert means == pytest.approx({"topic.label": 1.0, "mood.label": 2.0, "tags.tags": 1.0})


@pytest.mark.row(
    "SST-03",
    clause=(
        "heterogeneous batches with one head per task",
        "one batch holds several tasks",
        "the shared encoder receives gradient from every task",
    ),
)
def test_one_batch_has_several_tasks_and_all_teach_the_shared_stack() -> None:
    models = built(BY_TASK, model())
    terms = BY_TASK.loss(models, BY_TASK.prepare(raw(), WORDS, noise()), noise())
    shared = [parameter for name, parameter in models["model"].named_parameters() if not name.startswith("head.")]
    assert len(terms) == 3
    for name, term in terms.items():
        found = torch.autograd.grad(term.sum, shared, retain_graph=True)
        assert all(gradient.abs().max() > 0 for gradient in found), name
        heads = models["model"].head.heads
        own = torch.autograd.grad(term.sum, list(heads.parameters()), retain_graph=True, allow_unused=True)
        used = {
            path.split(".")[0]
            for (path, _), found in zip(heads.named_parameters(), own, strict=True)
            if found is not None
        }
        assert used == {name.split(".")[0]}


@pytest.mark.row("SST-03", clause="the loss of task i is divided by log of its number of classes")
def test_each_task_is_what_it_is_alone() -> None:
    models, made = built(BY_TASK, model()), BY_TASK.prepare(raw(), WORDS, noise())
    terms = BY_TASK.loss(models, made, noise())
    for name, rows in (("topic", [0, 1]), ("mood", [2, 4])):
        task = THREE[name]
        alone = built(task.objective, model())
        alone["model"].load_state_dict(
            {
                key.replace(f"head.heads.{name}.", "head."): value
                for key, value in models["model"].state_dict().items()
                if f"heads.{name}" in key or "heads" not in key
            }
        )
        part = task.objective.prepare(raw().take(torch.tensor(rows)), WORDS, noise())
        term = task.objective.loss(alone, part, noise())["label"]
        torch.testing.assert_close(
            terms[f"{name}.label"].sum, term.sum * task.weight / math.log(task.objective.classes)
        )


def test_every_task_may_see_every_row() -> None:
    tasks = {
        "number": MixtureTask(objective=Regress(), weight=0.5),
        "tags": MixtureTask(objective=TokenLabels(classes=3)),
    }
    both = Mixture(tasks=tasks)
    made = both.prepare(raw(), WORDS, noise())
    counts = both.counts(made)
    assert counts["number.label"] == 6 and counts["tags.tags"] == ((TAGS >= 0) & raw().frame.valid).sum()
    check_adds_up(both, built(both, model()), made, pieces(made))


def test_heads_are_kept_when_adapted_again() -> None:
    adapted = BY_TASK.adapt(model())
    assert isinstance(adapted.head, Several) and list(adapted.head.heads) == ["topic", "mood", "tags"]
    assert adapted.head.main == "topic"
    assert BY_TASK.adapt(adapted) == adapted


def test_words_of_two_corruptions_may_share_a_head() -> None:
    words = {
        name: MixtureTask(objective=objective, head="words")
        for name, objective in (("next", NextToken()), ("prefix", PrefixLM()))
    }
    mixture = Mixture(tasks={**words, "topic": THREE["topic"]})
    adapted = mixture.adapt(model(Decoder, head=Untied()))
    assert adapted.head.heads.keys() == {"words", "topic"} and mixture.adapt(adapted) == adapted
    models = built(mixture, model(Decoder, head=Untied()))
    made = mixture.prepare(raw(), WORDS, noise())
    assert mixture.loss(models, made, noise()).keys() == {"next.words", "prefix.words", "topic.label"}
    shared = {"words": MixtureTask(objective=NextToken(), head="topic"), "topic": THREE["topic"]}
    with pytest.raises(SpecError, match=r"tasks.topic: head='topic' is shared with a task that needs another"):
        Mixture(tasks=shared).adapt(model(Decoder))


def test_companions_belong_to_their_task() -> None:
    taught = Distillation(objective=Classify(classes=3), teacher="runs/teacher")
    mixture = Mixture(tasks={"a": MixtureTask(objective=ReplacedToken()), "b": MixtureTask(objective=taught)})
    models = built(mixture, model(), Classify(classes=3).adapt(model(depth=1)))
    assert models.keys() == {"model", "a.generator", "b.teacher"}
    assert models["a.generator"].embedding.weight is models["model"].embedding.weight
    made = mixture.prepare(batch(label=LABEL), WORDS, noise())
    terms = mixture.loss(models, made, noise())
    assert terms.keys() == {"a.words", "a.replaced", "b.label", "b.teacher"} == mixture.counts(made).keys() - {"parts"}


@pytest.mark.parametrize(
    "objective",
    [Classify(classes=3), Regress(), TokenLabels(classes=3), MultipleChoice(), ReplacedToken(), BY_TASK],
    ids=lambda objective: objective.kind,
)
def test_a_rank_without_rows_counts_nothing(objective: Objective) -> None:
    nothing = raw(choices=torch.randint(10, 40, (6, 3, 2))).take(torch.arange(0))
    assert all(count == 0 for count in objective.counts(objective.prepare(nothing, WORDS, noise())).values())


@pytest.mark.parametrize("objective", [SentencePairs(classes=3, order="both"), Contrastive()], ids=lambda o: o.kind)
def test_a_rank_without_pairs_counts_nothing(objective: Objective) -> None:
    nothing = batch(source=True, label=LABEL).take(torch.arange(0))
    assert all(count == 0 for count in objective.counts(objective.prepare(nothing, WORDS, noise())).values())


def test_a_part_of_a_batch_moves_with_it() -> None:
    moved = BY_TASK.prepare(raw(), WORDS, noise()).to("meta")
    assert all(part.tokens.device.type == "meta" for part in moved.parts.values())


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(SpecError, match="regress has no fixed number of classes"):
        MixtureTask(objective=Regress(), scale="log_classes")
    with pytest.raises(SpecError, match=r"tasks.find: replaced_token fills gaps"):
        Mixture(tasks={"find": MixtureTask(objective=ReplacedToken())}).adapt(model(Decoder))
    with pytest.raises(DataError, match="from 0 to 2 in every row"):
        BY_TASK.prepare(batch(label=LABEL, tags=TAGS), WORDS, noise())


@pytest.mark.row("SST-03")
def test_tasks_learn_together() -> None:
    tasks = {"topic": THREE["topic"], "pairs": MixtureTask(objective=Contrastive(), weight=0.3)}
    mixture = Mixture(tasks=tasks)
    assert mixture.adapt(model(Encoder)).head.heads.keys() == {"topic", "pairs"}
    models = built(BY_TASK, model())
    made = BY_TASK.prepare(raw(), WORDS, noise())
    learn(BY_TASK, models, [made], steps=40, lr=0.01)
    assert all(term.sum / term.weight < 0.1 for term in BY_TASK.loss(models, made, noise()).values())
