"""How objectives reach the head of a model: as a value, and after one pass over a batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, HeadSpec, Model, ModelSpec, PoolSpec
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models.single import Single
from anyformer.parts.heads.tied import Tied
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last


def require_single_text(model: ModelSpec, objective: str) -> Single:
    """The model, if it reads one text at a time; otherwise a SpecError that names the objective."""
    if model.needs_source:
        raise SpecError(
            f"{objective} reads one text, but {model.kind} wants a source and a target. Use an encoder or a decoder, "
            f'or give it the answers as texts: objective.kind = "seq2seq".'
        )
    return single(model)


def single(model: ModelSpec) -> Single:
    """A model that is known to have one stack, with its type."""
    assert isinstance(model, Single)
    return model


def default_pool(model: Single) -> PoolSpec:
    """The pool of the token that has seen all the others: the first of an encoder, the last of a decoder."""
    return Last() if model.causal else First()


def words_head(model: ModelSpec, otherwise: HeadSpec = Tied()) -> HeadSpec:  # noqa: B008
    """The model's head over words, or `otherwise` if it has none."""
    head = model.output_stack.head.named("words")
    return head if head.scores_words else otherwise


class HiddenStates(NamedTuple):
    """The output of the last layer for a batch, before any head."""

    h: Tensor
    frame: Frame
    auxiliary_loss: Tensor | None = None
    """Sum of the losses of the model's own parts, an encoder's included; None if no part has one."""


def read(model: Model, batch: Batch) -> HiddenStates:
    """One pass over a batch; the frame is the one behind the last layer."""
    out, memory = model(batch.tokens, batch.frame, logits=False), batch.frame.memory
    losses = [*out.losses.values(), *(() if memory is None else memory.losses.values())]
    return HiddenStates(out.y, out.frame or batch.frame, torch.stack(losses).sum() if losses else None)
