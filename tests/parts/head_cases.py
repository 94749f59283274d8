"""A small encoder with any head, for the tests of heads."""

import torch

from anyformer.core import EmbeddingSpec, HeadSpec, Model
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.plain import Plain

VOCAB, DIM = 50, 32


def encoder(head: HeadSpec, embedding: EmbeddingSpec | None = None, vocab: int = VOCAB) -> Encoder:
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP()),))}, depth=1)
    return Encoder(vocab=vocab, dim=DIM, stack=stack, head=head, embedding=embedding or Plain())


def noisy(model: Model) -> Model:
    """Biases and gains are trivial in a fresh model."""
    for parameter in model.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return model
