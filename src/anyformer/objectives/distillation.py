"""A student learns from a teacher's probabilities beside the truth.

L = alpha T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)) + (1 - alpha) L_truth          (arXiv 1503.02531)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.core import Frame, HeadSpec, Model, ModelSpec, Positive, Range, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError, at
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.objectives.heads import RecordingModel, head_of, head_spec, speaker
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.own import PARTS
from anyformer.objectives.scoring import SCORE
from anyformer.objectives.words import as_read, read_pair
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.several import Several
from anyformer.parts.heads.token_classifier import TokenClassifier

TEACHER, SOFT = "teacher", "teacher"
"""The companion's name, and the name of the term that comes from it."""
AT_ONCE = 1024
"""Places whose probabilities are compared at a time: those of all places at once never exist."""


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
        adapted = self.objective.adapt(model)
        if not _gives_probabilities(head_spec(adapted)):
            raise self._refusal()
        return adapted

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        with at("teacher"):
            teacher = self.objective.adapt(self.teacher)
        return {**self.objective.companions(model), TEACHER: teacher}

    def tie(self, models: Mapping[str, Model]) -> None:
        models[TEACHER].requires_grad_(False)
        self.objective.tie(models)

    @property
    def relays(self) -> bool:
        return self.objective.relays

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        return self.objective.prepare(batch, words, rng)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        truth = self.objective.counts(batch)
        if SCORE in truth:
            return {**truth, SOFT: truth[SCORE]}
        if batch.weight is None:
            raise self._refusal()
        source = None if batch.source is None else batch.source.weight
        return {**truth, SOFT: batch.weight.sum() if source is None else batch.weight.sum() + source.sum()}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        student, teacher = RecordingModel(models["model"], head_of(models["model"])), models[TEACHER].eval()
        truth = self.objective.loss({**models, "model": student}, batch, rng)
        terms = {
            name: term if name == PARTS else Term((1 - self.alpha) * term.sum, term.weight)
            for name, term in truth.items()
        }
        soft = self._of_rows if SCORE in truth else self._of_places
        return {**terms, SOFT: soft(student, teacher, batch)}

    def _of_rows(self, student: RecordingModel, teacher: Model, batch: Batch) -> Term:
        """Where the objective asks for a class of each row."""
        assert student.asked is not None and student.answer is not None
        tokens, frame = student.asked
        given = head_of(student)(student.answer.y, student.answer.frame or frame)
        with torch.no_grad():
            wanted = teacher(tokens, frame).y
        rows = len(batch.tokens)
        each = self._divergence(*(scores.unflatten(0, (rows, -1)).sum(1) for scores in (given, wanted)))  # both ways: 2
        return Term(each.sum(), torch.tensor(float(rows), device=each.device))

    def _of_places(self, student: RecordingModel, teacher: Model, batch: Batch) -> Term:
        """Where it asks for a word or a tag of each place. One may read a pair in one row and the other not: the target
        stands at the end of that row."""
        assert student.answer is not None
        with torch.no_grad():
            taught = read_pair(teacher, batch)[0].h
        h, weight = student.answer.y, as_read(student, batch).weight
        if h.shape[1] != taught.shape[1]:
            width, weight = batch.tokens.shape[1], batch.weight
            h, taught = h[:, -width:], taught[:, -width:]
        assert weight is not None
        flat = [h.flatten(0, 1), taught.flatten(0, 1), weight.flatten()]
        if h.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere it would have to be waited for
            flat = [x[weight.flatten() > 0] for x in flat]
        total = torch.zeros((), device=h.device)
        for some in zip(*(x.split(AT_ONCE) for x in flat), strict=True):
            total = total + checkpoint(self._of_some, student, teacher, *some, use_reentrant=False)
        return Term(total, weight.sum())

    def _of_some(self, student: Model, teacher: Model, h: Tensor, taught: Tensor, weight: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = head_of(teacher)(taught[None], Frame())[0]
        each = self._divergence(head_of(student)(h[None], Frame())[0], wanted)
        return each.where(weight > 0, 0.0) @ weight.to(each)

    def _divergence(self, given: Tensor, wanted: Tensor) -> Tensor:
        """Logits [n c] of student and teacher: how far the student is from it, by its share of the loss."""
        given, wanted = ((logits.float() / self.temperature).log_softmax(-1) for logits in (given, wanted))
        scale = self.alpha * self.temperature**2
        return scale * F.kl_div(given, wanted, log_target=True, reduction="none").sum(-1)

    def _refusal(self) -> SpecError:
        return SpecError(f"distillation needs probabilities: words, classes or tags; {self.objective.kind} has none.")


def _gives_probabilities(head: HeadSpec) -> bool:
    """Whether it chooses among several."""
    if isinstance(head, Several):
        return _gives_probabilities(head.heads[head.main])
    return not isinstance(head, Pooled) and not (isinstance(head, Classifier | TokenClassifier) and head.classes < 2)
