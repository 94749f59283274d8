"""The head of a model, whichever of the three shapes it has: as a value, as a module, and exchanged for another."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyformer.core import Borrowed, Frame, Head, HeadSpec, Memory, Model, ModelSpec, Out, PoolSpec, State
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel
from anyformer.models.single import Single
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.several import Several
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last


def head_spec(model: ModelSpec) -> HeadSpec:
    """What stands behind the last layer of a model."""
    return speaker(model).head


def with_head(model: ModelSpec, head: HeadSpec) -> ModelSpec:
    """The same model with another head."""
    if isinstance(model, EncoderDecoder):
        return replace(model, decoder=replace(model.decoder, head=head))
    return replace(speaker(model), head=head)


def speaker(model: ModelSpec) -> Single:
    """The stack that has the head: the model itself, or its writing half."""
    found = model.decoder if isinstance(model, EncoderDecoder) else model
    assert isinstance(found, Single)  # the family of models is closed
    return found


def reader(model: ModelSpec, objective: str) -> Single:
    """The model, if it reads one text at a time."""
    if isinstance(model, EncoderDecoder):
        raise SpecError(
            f"{objective} reads one text, but {model.kind} wants a source and a target. Use an encoder or a decoder, "
            f'or give it the answers as texts: objective.kind = "seq2seq".'
        )
    return speaker(model)


def default_pool(model: Single) -> PoolSpec:
    """The token that has seen all the others: the first of an encoder, the last of a decoder."""
    return Last() if model.causal else First()


def words_head(model: ModelSpec, otherwise: HeadSpec = Tied()) -> HeadSpec:  # noqa: B008
    """The model's head over words; where it has another, the embedding's own table or what else is wanted."""
    head = head_spec(model)
    if isinstance(head, Several):
        head = head.heads.get("words", head)
    return otherwise if isinstance(head, Several | Hidden | Pooled | Classifier | TokenClassifier) else head


def head_of(model: Model) -> Head:
    """The module behind the last layer."""
    found = model.decoder.head if isinstance(model, EncoderDecoderModel) else model.head
    assert isinstance(found, Head)
    return found


class HiddenStates(NamedTuple):
    """What a model made of a batch, before any head."""

    h: Tensor
    frame: Frame
    own: Tensor | None = None
    """What its parts ask for themselves, those of an encoder included; None: nothing."""


def read(model: Model, batch: Batch) -> HiddenStates:
    """One pass; the frame is the one behind the last layer."""
    out, memory = model(batch.tokens, batch.frame, logits=False), batch.frame.memory
    own = [*out.losses.values(), *(() if memory is None else memory.losses.values())]
    return HiddenStates(out.y, out.frame or batch.frame, torch.stack(own).sum() if own else None)


class RecordingModel(Model):
    """A model seen with one of its heads; it remembers what it was asked and what it answered."""

    head: nn.Module

    def __init__(self, model: Model, head: Head):
        super().__init__()
        self.whole = Borrowed(model)
        self.head = head
        self.asked: tuple[Tensor, Frame] | None = None
        self.answer: Out | None = None

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out = self.whole.module(tokens, frame, state, logits=False)
        self.asked, self.answer = (tokens, frame), out
        return out.with_y(self.head(out.y, out.frame or frame)) if logits else out

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        spoken: Tensor = self.head(h, frame)
        return spoken

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        return self.whole.module.encode(tokens, frame)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.whole.module.init_state(batch, max_len, memory)
