"""Compares the probabilities of two passes over a batch: of a student and its teachers, or of one model twice."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.core import Frame, Head, Model, Out, State, WrappedModel
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.objectives.scoring import SCORE
from anyformer.objectives.words import WORDS, words_count
from anyformer.ops.loss import tokens_with_weight

AT_ONCE = 1024
"""Positions whose probabilities are compared at a time, so that the logits of all positions never exist at once."""
Divergence = Callable[..., Tensor]
"""Logits [n c] of one pass, and of the passes that it is compared with -> one number for each of the n."""


class LastCall(WrappedModel):
    """A model with the inputs and the output of its last call, so that it need not run twice."""

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

    def hidden(self) -> Tensor:
        """The hidden states of the last call."""
        assert self.out is not None
        return self.out.y

    def scores(self) -> Tensor:
        """The head's output for the last call."""
        assert self.inputs is not None and self.out is not None
        return self.head(self.out.y, self.out.frame or self.inputs[1])


def compared_count(objective: str, truth: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The number of rows or positions with probabilities to compare; `truth`: the counts of the objective."""
    if SCORE not in truth and batch.weight is None:
        raise no_probabilities(objective)
    return truth[SCORE] if SCORE in truth else words_count(batch)[WORDS]


def no_probabilities(objective: str) -> SpecError:
    """The error for an objective whose model gives no distribution."""
    return SpecError(f"probabilities are compared: of words, classes or tags; {objective} has none.")


def scores_of_rows(scores: Tensor, batch: Batch) -> Tensor:
    """The scores of each row [b c]; a pair that is read both ways has two rows of scores, which are added."""
    readings: Tensor = scores.unflatten(0, (len(batch.tokens), -1))
    return readings.sum(1)


def sum_over_positions(
    divergence: Divergence, one: tuple[Head, Tensor], others: Sequence[tuple[Head, Tensor]], weight: Tensor
) -> Tensor:
    """The weighted sum of a divergence over the positions of a batch. one, others: heads and their hidden states."""
    heads, h = [head for head, _ in (one, *others)], one[1]
    total, place = torch.zeros((), device=h.device), torch.arange(weight.numel(), device=h.device)
    h, place, weights = tokens_with_weight(h, place.view_as(weight), weight)
    hidden = [h, *(other_h.flatten(0, 1)[place] for _, other_h in others)]

    def of_chunk(weight: Tensor, *hidden: Tensor) -> Tensor:
        logits = (head(h[None], Frame())[0] for head, h in zip(heads, hidden, strict=True))
        each = divergence(*logits)
        return each.where(weight > 0, 0.0) @ weight.to(each)

    for chunk in zip(*(x.split(AT_ONCE) for x in (weights, *hidden)), strict=True):
        total = total + checkpoint(of_chunk, *chunk, use_reentrant=False)
    return total
