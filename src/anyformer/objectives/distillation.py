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

from anyformer.core import Frame, Model, ModelSpec, Out, Positive, Range, State, WrappedModel, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError, at
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.scoring import SCORE
from anyformer.objectives.words import PARTS, WORDS, as_read, read_pair, row_count, words_count
from anyformer.ops.loss import tokens_with_weight

TEACHER, SOFT = "teacher", "teacher"
"""Name of the pretrained model, and of the term that comes from it."""
AT_ONCE = 1024
"""Positions whose probabilities are compared at a time, so that the logits of all positions never exist at once."""


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective, kind="distillation"):
    """Another objective, with the probabilities of a trained teacher beside the labels."""

    objective: Objective
    """The objective of student and teacher: words, classes or tags."""
    teacher: str
    """Folder of the run whose model is the teacher; its weights are frozen."""
    alpha: Annotated[float, Range(low=0.0, high=1.0)] = 0.5
    """Weight of the teacher's term; the labels have the rest."""
    temperature: Positive = 2.0
    """Divides the logits of both models, so that small probabilities of the teacher count."""

    @classmethod
    def examples(cls) -> "tuple[Distillation, ...]":
        return (cls(objective=kind_of(Objective, "classify").examples()[0], teacher="runs/teacher"),)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted = self.objective.adapt(model)
        if not adapted.output_stack.head.has_probabilities:
            raise self._refusal()
        return adapted

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        return self.objective.companions(model)

    @property
    def pretrained(self) -> Mapping[str, str]:
        return {**self.objective.pretrained, TEACHER: self.teacher}

    def check_pretrained(self, name: str, theirs: ModelSpec, model: ModelSpec) -> None:
        if name != TEACHER:
            return self.objective.check_pretrained(name, theirs, model)
        ours, vocab = model.output_stack.vocabulary, theirs.output_stack.vocabulary
        if ours != vocab:
            raise SpecError(f"the teacher has {vocab} tokens, the student {ours}: both must use one tokenizer.")
        with at("teacher"):
            needed, head = self.objective.adapt(theirs).output_stack.head, theirs.output_stack.head
            if needed != head:
                raise SpecError(
                    f"{self.teacher} has a {head.kind} head, and {self.objective.kind} needs {needed.kind}. "
                    f'Name a run that was trained with objective.kind = "{self.objective.kind}".'
                )

    def tie(self, models: Mapping[str, Model]) -> None:
        self.objective.tie(models)

    @property
    def relays(self) -> bool:
        return self.objective.relays

    @property
    def heads_vary(self) -> bool:
        return self.objective.heads_vary

    @property
    def parts(self) -> tuple[Objective, ...]:
        return self.objective.parts

    def views(self, model: Model) -> list[tuple[Objective, Model]]:
        return self.objective.views(model)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        return self.objective.prepare(batch, words, rng)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        truth = self.objective.counts(batch)
        if SCORE not in truth and batch.weight is None:
            raise self._refusal()
        return {**truth, SOFT: truth[SCORE] if SCORE in truth else words_count(batch)[WORDS]}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        student, teacher = _LastCall(models["model"]), models[TEACHER].eval()
        truth = self.objective.loss({**models, "model": student}, batch, rng)
        terms = {name: term if name == PARTS else term.scaled(1 - self.alpha) for name, term in truth.items()}
        soft = self._of_rows if SCORE in truth else self._of_places
        return {**terms, SOFT: soft(student, teacher, batch)}

    def _of_rows(self, student: "_LastCall", teacher: Model, batch: Batch) -> Term:
        """The teacher's term of an objective with one class for each row."""
        assert student.inputs is not None and student.out is not None
        tokens, frame = student.inputs
        ours = student.head(student.out.y, student.out.frame or frame)
        with torch.no_grad():
            theirs = teacher(tokens, frame).y
        rows = len(batch.tokens)  # a pair that is read both ways has two rows of scores, which are added
        each = self._divergence(*(scores.unflatten(0, (rows, -1)).sum(1) for scores in (ours, theirs)))
        return Term(each.sum(), row_count(batch))

    def _of_places(self, student: "_LastCall", teacher: Model, batch: Batch) -> Term:
        """The teacher's term of an objective with a word or a tag for each position. If only one of the two models
        reads a pair in one row, the target stands at the end of that row."""
        assert student.out is not None
        with torch.no_grad():
            taught = read_pair(teacher, batch)[0].h
        h, weight = student.out.y, as_read(student, batch).weight
        if h.shape[1] != taught.shape[1]:
            width, weight = batch.tokens.shape[1], batch.weight
            h, taught = h[:, -width:], taught[:, -width:]
        assert weight is not None
        total, place = torch.zeros((), device=h.device), torch.arange(weight.numel(), device=h.device)
        h, place, weights = tokens_with_weight(h, place.view_as(weight), weight)
        taught = taught.flatten(0, 1)[place]
        for chunk in zip(*(x.split(AT_ONCE) for x in (h, taught, weights)), strict=True):
            total = total + checkpoint(self._of_chunk, student, teacher, *chunk, use_reentrant=False)
        return Term(total, weight.sum())

    def _of_chunk(self, student: Model, teacher: Model, h: Tensor, taught: Tensor, weight: Tensor) -> Tensor:
        with torch.no_grad():
            theirs = teacher.output_head()(taught[None], Frame())[0]
        each = self._divergence(student.output_head()(h[None], Frame())[0], theirs)
        return each.where(weight > 0, 0.0) @ weight.to(each)

    def _divergence(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """alpha T^2 KL(teacher || student) of logits [n c], for each of the n."""
        ours, theirs = ((logits.float() / self.temperature).log_softmax(-1) for logits in (ours, theirs))
        scale = self.alpha * self.temperature**2
        return scale * F.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)

    def _refusal(self) -> SpecError:
        return SpecError(f"distillation needs probabilities: words, classes or tags; {self.objective.kind} has none.")


class _LastCall(WrappedModel):
    """The student, with the inputs and the output of its last call, so that it need not run twice."""

    def __init__(self, inner: Model):
        super().__init__(inner)
        self.inputs: tuple[Tensor, Frame] | None = None
        self.out: Out | None = None

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out = self.inner(tokens, frame, state, logits=False)
        self.inputs, self.out = (tokens, frame), out
        return out.with_y(self.head(out.y, out.frame or frame)) if logits else out
