"""A student learns from a teacher's probabilities beside the truth.

L = alpha T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)) + (1 - alpha) L_truth          (arXiv 1503.02531)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Model, ModelSpec, Positive, Range, kind_of
from anyformer.data.batch import Batch
from anyformer.data.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.objectives.heads import View, head_of, speaker
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.scoring import SCORE
from anyformer.objectives.words import in_one_row
from anyformer.parts.channels.mlp import MLP

TEACHER, SOFT = "teacher", "teacher"
"""The companion's name, and the name of the term that comes from it."""


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective, kind="distillation"):
    """Another objective, with a teacher's probabilities beside its truth."""

    objective: Objective
    """What student and teacher are asked for: words, classes or tags."""
    teacher: ModelSpec
    """The model to learn from; it does not learn itself."""
    alpha: Annotated[float, Range(low=0.0, high=1.0)] = 0.5
    """How much the teacher counts; the truth counts the rest."""
    temperature: Positive = 2.0
    """Softens both sides, so that the teacher's small probabilities are seen."""

    @classmethod
    def examples(cls) -> "tuple[Distillation, ...]":
        layer = Block(branches=(Branch(part=MLP()),))
        teacher = Encoder(vocab=29, dim=32, stack=Stack(blocks={"layer": layer}, depth=1))
        return (cls(objective=kind_of(Objective, "classify").examples()[0], teacher=teacher),)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        mine, theirs = speaker(model).vocab, speaker(self.teacher).vocab
        if mine != theirs:
            raise SpecError(f"the teacher knows {theirs} tokens, the student {mine}: both must use one tokenizer.")
        return self.objective.adapt(model)

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        return {**self.objective.companions(model), TEACHER: self.objective.adapt(self.teacher)}

    def tie(self, models: Mapping[str, Model]) -> None:
        models[TEACHER].requires_grad_(False)
        self.objective.tie(models)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        return self.objective.prepare(batch, words, rng)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        source = None if batch.source is None else batch.source.weight
        mine = self._scored(batch).sum()
        return {**self.objective.counts(batch), SOFT: mine if source is None else mine + source.sum()}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        student = View(models["model"], head_of(models["model"]))
        truth = self.objective.loss({**models, "model": student}, batch, rng)
        terms = {name: Term((1 - self.alpha) * term.sum, term.weight) for name, term in truth.items()}
        return {**terms, SOFT: self._soft(student, models[TEACHER].eval(), batch)}

    def _scored(self, batch: Batch) -> Tensor:
        """How much each row counts [b], where the objective asks for a score of it, or each place [b t]."""
        if SCORE in self.objective.counts(batch):
            return torch.ones(len(batch.tokens), device=batch.tokens.device)
        if batch.weight is None:
            raise SpecError(
                f"distillation needs probabilities: words, classes or tags; {self.objective.kind} has none."
            )
        return batch.weight

    def _soft(self, student: View, teacher: Model, batch: Batch) -> Term:
        assert student.asked is not None and student.answer is not None
        tokens, frame = student.asked
        weights = self._scored(batch)
        if weights.dim() == 2 and weights.shape != tokens.shape:  # a pair, read in one row
            weights = self._scored(in_one_row(batch))
        with torch.no_grad():
            if student.source is not None:
                frame = replace(frame, memory=teacher.encode(*student.source))
            out = teacher(tokens, frame, logits=False)
            wanted = _logits(teacher, out.y, out.frame or frame, weights)
        given = _logits(student, student.answer.y, student.answer.frame or frame, weights)
        if given.shape[-1] < 2:
            raise SpecError(
                f"distillation needs probabilities: words, classes or tags; {self.objective.kind} has none."
            )
        given, wanted = ((logits.float() / self.temperature).log_softmax(-1) for logits in (given, wanted))
        divergence = F.kl_div(given, wanted, log_target=True, reduction="none").sum(-1)  # of each place
        scale = self.alpha * self.temperature**2
        return Term(scale * (divergence * weights[weights > 0]).sum(), weights.sum())


def _logits(model: Model, h: Tensor, frame: Frame, weights: Tensor) -> Tensor:
    """[n c]: of the places or rows that count."""
    if weights.dim() == 1:
        rows: Tensor = head_of(model)(h, frame).unflatten(0, (len(weights), -1))
        return rows.sum(1)  # a pair read both ways has two
    return head_of(model)(h[weights > 0][None], Frame())[0]
