"""R-Drop: two passes over the same batch with different dropout should give the same probabilities.

L = (L_1 + L_2) / 2 + alpha / 4 (KL(P_1 || P_2) + KL(P_2 || P_1))          half of arXiv 2106.14448, eq. 4
L_i is the loss of another objective in pass i. In evaluation there is no dropout, one pass, and no divergence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Model, ModelSpec, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.objectives.divergence import (
    LastCall,
    compared_count,
    no_probabilities,
    scores_of_rows,
    sum_over_positions,
)
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.scoring import SCORE, Share
from anyformer.objectives.words import as_read, row_count
from anyformer.objectives.wrapped import WrappedObjective

DIVERGENCE = "divergence"
"""Name of the term that compares the two passes."""


@dataclass(frozen=True, kw_only=True)
class RDrop(WrappedObjective, kind="r_drop"):
    """Another objective, in two passes with different dropout whose probabilities should agree."""

    objective: Objective
    """The objective of each pass: words, classes or tags."""
    alpha: Share = 1.0
    """Weight of the divergence of the two passes; the paper uses 1 to 5."""

    @classmethod
    def examples(cls) -> "tuple[RDrop, ...]":
        return (cls(objective=kind_of(Objective, "classify").examples()[0]),)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted = self.objective.adapt(model)
        if not adapted.output_stack.head.has_probabilities:
            raise no_probabilities(self.objective.kind)
        return adapted

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        truth = self.objective.counts(batch)
        return {**truth, DIVERGENCE: compared_count(self.objective.kind, truth, batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        if not models["model"].training:
            return self.objective.loss(models, batch, rng)
        passes = LastCall(models["model"]), LastCall(models["model"])
        one, other = (self.objective.loss({**models, "model": call}, batch, rng) for call in passes)
        terms = {name: Term((term.sum + other[name].sum) / 2, term.weight) for name, term in one.items()}
        compare = self._of_rows if SCORE in one else self._of_positions
        return {**terms, DIVERGENCE: compare(passes, batch)}

    def _of_rows(self, passes: tuple[LastCall, LastCall], batch: Batch) -> Term:
        """The divergence of an objective with one class for each row."""
        each = self._divergence(*(scores_of_rows(one.scores(), batch) for one in passes))
        return Term(each.sum(), row_count(batch))

    def _of_positions(self, passes: tuple[LastCall, LastCall], batch: Batch) -> Term:
        """The divergence of an objective with a word or a tag for each position."""
        weight = as_read(passes[0], batch).weight
        assert weight is not None
        one, other = ((call.output_head(), call.hidden()) for call in passes)
        return Term(sum_over_positions(self._divergence, one, [other], weight), weight.sum())

    def _divergence(self, one: Tensor, other: Tensor) -> Tensor:
        """alpha / 4 (KL(P_1 || P_2) + KL(P_2 || P_1)) of logits [n c], for each of the n."""
        p, q = (logits.float().log_softmax(-1) for logits in (one, other))
        there, back = (F.kl_div(*pair, log_target=True, reduction="none").sum(-1) for pair in ((p, q), (q, p)))
        return self.alpha / 4 * (there + back)
