"""A student learns from a teacher's probabilities beside the truth.

L = alpha T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)) + (1 - alpha) L_truth          (arXiv 1503.02531)
Of several teachers, an ensemble, the mean of the probabilities is taken: 1/K sum_k softmax(z_k / T).
Each of the `matches` (hidden states, attention maps) adds a term of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Model, ModelSpec, Positive, Range, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError, at
from anyformer.objectives.divergence import (
    LastCall,
    compared_count,
    no_probabilities,
    scores_of_rows,
    sum_over_positions,
)
from anyformer.objectives.matches.match import (
    Match,
    Projections,
    TappedModel,
    check_matches,
    distance_of_rows,
    projections_between,
)
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.scoring import SCORE
from anyformer.objectives.words import PARTS, as_read, read_pair, row_count
from anyformer.objectives.wrapped import WrappedObjective

TEACHER, SOFT = "teacher", "teacher"
"""Name of the pretrained model, and of the term that comes from it."""
PROJECTIONS = "projections"
"""Name of the model that holds the matrices between the widths of student and teacher."""


@dataclass(frozen=True, kw_only=True)
class Distillation(WrappedObjective, kind="distillation"):
    """Another objective, with the probabilities of a trained teacher beside the labels."""

    objective: Objective
    """The objective of student and teacher: words, classes or tags."""
    teacher: str | tuple[str, ...]
    """Folder of the run whose model is the teacher, or several: an ensemble. The weights of teachers are frozen."""
    alpha: Annotated[float, Range(low=0.0, high=1.0)] = 0.5
    """Weight of the teacher's term; the labels have the rest."""
    temperature: Positive = 2.0
    """Divides the logits of both models, so that small probabilities of the teacher count."""
    matches: tuple[Match, ...] = ()
    """What the student copies from the layers of the teacher beside its probabilities: "hidden", "attention"."""

    def check(self) -> None:
        kinds = [match.kind for match in self.matches]
        if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
            raise SpecError(f"matches: {twice[0]} is listed {kinds.count(twice[0])} times. List it once.")
        if not self.teachers:
            raise SpecError("teacher: names no run. Name one, or several for an ensemble.")
        if self.matches and len(self.teachers) > 1:
            raise SpecError(f"matches: one teacher is copied, and there are {len(self.teachers)}. Leave out matches.")

    @property
    def teachers(self) -> Mapping[str, str]:
        """The folders of the teachers by the names of their models: teacher, teacher_2, ..."""
        folders = (self.teacher,) if isinstance(self.teacher, str) else self.teacher
        return {f"{TEACHER}_{number}" if number > 1 else TEACHER: each for number, each in enumerate(folders, start=1)}

    @classmethod
    def examples(cls) -> "tuple[Distillation, ...]":
        return (cls(objective=kind_of(Objective, "classify").examples()[0], teacher="runs/teacher"),)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted = self.objective.adapt(model)
        if not adapted.output_stack.head.has_probabilities:
            raise no_probabilities(self.objective.kind)
        return adapted

    @property
    def pretrained(self) -> Mapping[str, str]:
        return {**self.objective.pretrained, **self.teachers}

    def check_pretrained(self, name: str, theirs: ModelSpec, model: ModelSpec) -> None:
        if name not in self.teachers:
            return self.objective.check_pretrained(name, theirs, model)
        if not theirs.learns:
            raise SpecError(f"teacher: {self.teachers[name]} is quantised. Name the run that it was made from.")
        if self.matches:
            check_matches(self.matches, model, theirs)
        ours, vocab = model.output_stack.vocabulary, theirs.output_stack.vocabulary
        if ours != vocab:
            raise SpecError(
                f"the teacher has {vocab} tokens, the student {ours}: both must use one tokenizer. If they do, and one "
                f"has rows to spare, set the vocab of the student to {vocab}."
            )
        with at("teacher"):
            needed, head = self.objective.adapt(theirs).output_stack.head, theirs.output_stack.head
            if needed != head:
                raise SpecError(
                    f"{self.teachers[name]} has a {head.kind} head, and {self.objective.kind} needs {needed.kind}. "
                    f'Name a run that was trained with objective.kind = "{self.objective.kind}".'
                )

    def projections(self, model: ModelSpec, theirs: Mapping[str, ModelSpec]) -> Mapping[str, Model]:
        inner = self.objective.projections(model, theirs)
        between = projections_between(self.matches, model, theirs[TEACHER]) if self.matches else None
        return inner if between is None else {**inner, PROJECTIONS: between}

    @property
    def reads_taps(self) -> bool:
        return bool(self.matches) or self.objective.reads_taps

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        truth = self.objective.counts(batch)
        counts = {**truth, SOFT: compared_count(self.objective.kind, truth, batch)}
        return {**counts, **{match.kind: row_count(batch) for match in self.matches}}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        taps = [match.taps for match in self.matches]
        teachers = [TappedModel(models[name].eval(), taps) for name in self.teachers]
        tapped = TappedModel(models["model"], taps)
        student = LastCall(tapped)
        truth = self.objective.loss({**models, "model": student}, batch, rng)
        terms = {name: term if name == PARTS else term.scaled(1 - self.alpha) for name, term in truth.items()}
        soft = self._of_rows if SCORE in truth else self._of_positions
        terms[SOFT] = soft(student, teachers, batch)
        return {**terms, **self._of_layers(tapped, teachers[0], models, batch)}

    def _of_layers(self, student: TappedModel, teacher: TappedModel, models: Mapping[str, Model], batch: Batch) -> Loss:
        """The terms of the matches, from the passes that gave the probabilities."""
        projections = models.get(PROJECTIONS)
        assert projections is None or isinstance(projections, Projections)
        terms, weight = dict[str, Term](), batch.labels.weight
        for match in self.matches:
            each = distance_of_rows(match, student, teacher, projections)
            each = each.unflatten(0, (len(batch.tokens), -1)).mean(1)  # a pair that is read both ways has two rows
            terms[match.kind] = Term(match.weight * (each if weight is None else each * weight).sum(), row_count(batch))
        return terms

    def _of_rows(self, student: LastCall, teachers: Sequence[Model], batch: Batch) -> Term:
        """The teachers' term of an objective with one class for each row."""
        assert student.inputs is not None
        with torch.no_grad():
            theirs = [teacher(*student.inputs).y for teacher in teachers]
        each = self._divergence(*(scores_of_rows(scores, batch) for scores in (student.scores(), *theirs)))
        return Term(each.sum(), row_count(batch))

    def _of_positions(self, student: LastCall, teachers: Sequence[Model], batch: Batch) -> Term:
        """The teachers' term of an objective with a word or a tag for each position. If only some of the models read a
        pair in one row, the target stands at the end of that row."""
        with torch.no_grad():
            taught = [read_pair(teacher, batch)[0].h for teacher in teachers]
        h, weight = student.hidden(), as_read(student, batch).weight
        if any(each.shape[1] != h.shape[1] for each in taught):
            width, weight = batch.tokens.shape[1], batch.weight
            h, taught = h[:, -width:], [each[:, -width:] for each in taught]
        assert weight is not None
        others = [(teacher.output_head(), each) for teacher, each in zip(teachers, taught, strict=True)]
        total = sum_over_positions(self._divergence, (student.output_head(), h), others, weight)
        return Term(total, weight.sum())

    def _divergence(self, ours: Tensor, *theirs: Tensor) -> Tensor:
        """alpha T^2 KL(mean of the teachers || student) of logits [n c], for each of the n."""
        student, *logs = ((scores.float() / self.temperature).log_softmax(-1) for scores in (ours, *theirs))
        teacher = logs[0] if len(logs) == 1 else torch.stack(logs).logsumexp(0) - math.log(len(logs))
        scale = self.alpha * self.temperature**2
        return scale * F.kl_div(student, teacher.detach(), log_target=True, reduction="none").sum(-1)
