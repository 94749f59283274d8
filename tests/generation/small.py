"""Small models that write, random but decided."""

from typing import Any

import torch
from torch import Tensor

from anyformer.core import Frame, Model, PartSpec
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope

SURE = NormalInit(deviation=0.5)
LOOK = Attention(heads=2, position=Rope())


def stack(*parts: PartSpec) -> Stack:
    return Stack(blocks={"layer": Block(branches=tuple(Branch(part=part) for part in parts))}, depth=2)


def writer(vocab: int = 23, seed: int = 2) -> Model:
    spec = Decoder(vocab=vocab, dim=16, stack=stack(LOOK, MLP()), head=Untied(), init=SURE)
    return spec.build(seed=seed).eval()


def translator(vocab: int = 23, seed: int = 0) -> Model:
    reading = Encoder(vocab=vocab, dim=16, stack=stack(LOOK, MLP()))
    parts = LOOK, Cross(part=Attention(heads=2)), MLP()
    writing = Decoder(vocab=vocab, dim=16, stack=stack(*parts), head=Untied(), init=SURE)
    return EncoderDecoder(encoder=reading, decoder=writing).build(seed=seed).eval()


@torch.no_grad()
def log_probability(model: Model, prompt: list[int], words: list[int], source: list[int] | None = None) -> Tensor:
    """log P of each word after the prompt, in one call without a state."""
    memory = None if source is None else model.encode(torch.tensor([source]), Frame())
    logits = model(torch.tensor([prompt + words]), Frame(memory=memory)).y[0].log_softmax(-1)
    return logits[len(prompt) - 1 : -1].gather(1, torch.tensor(words)[:, None])[:, 0]


@torch.no_grad()
def uncached(model: Model, prompt: list[int], new: int) -> list[int]:
    """Greedy words, each from a call on everything before it."""
    words = list(prompt)
    for _ in range(new):
        words.append(int(model(torch.tensor([words]), Frame()).y[0, -1].argmax()))
    return words[len(prompt) :]


class Given(torch.nn.Module):
    """A model whose encoder has read already."""

    def __init__(self, model: Any, memory: Any):
        super().__init__()
        self.model, self.memory = model, memory
        self.init_state, self.logits = model.init_state, model.logits

    def encode(self, *_: Any) -> Any:
        return self.memory

    def forward(self, *given: Any, logits: bool = True) -> Any:
        return self.model(*given, logits=logits)
