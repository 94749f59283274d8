"""Small funnels, and the lengths of what goes through them, for the tests of `shorten` and `pooled_queries`."""

from dataclasses import replace

import torch

from anyformer.core import Frame, Model, capture
from anyformer.models import EncoderDecoder
from anyformer.training import load

DIM, HEADS, VOCAB = 12, 3, 11


def small(name: str = "vanilla-funnel") -> EncoderDecoder:
    spec = load(name)
    assert isinstance(spec, EncoderDecoder)
    encoder, decoder = (replace(half, dim=DIM, vocab=VOCAB) for half in (spec.encoder, spec.decoder))
    return EncoderDecoder(encoder=encoder, decoder=decoder)


def lengths_of(model: Model, length: int) -> list[int]:
    """The number of tokens behind each layer of the encoder."""
    with capture(model, "encoder.stack.layers.*.stream") as seen:
        model.encode(torch.arange(length)[None] % VOCAB, Frame())
    return [calls[0].shape[1] for calls in seen.values()]
