"""What the objectives over words are looked at with: who feels whom, sums in pieces, and pairs."""

import torch
from tests.objectives.small import DIM, WORDS, built, check_adds_up, model, noise, rows_of
from torch import Tensor

from anyformer.core import Embedding, Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.objectives.objective import Objective
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention


def pair_model() -> EncoderDecoder:
    parts = (Attention(heads=2), Cross(part=Attention(heads=2)), MLP(hidden=24))
    stack = Stack(blocks={"layer": Block(branches=tuple(Branch(part=part) for part in parts))}, depth=2)
    decoder = Decoder(vocab=WORDS.size, dim=DIM, stack=stack, max_len=64)
    return EncoderDecoder(encoder=model(Encoder), decoder=decoder)


def adds_up(objective: Objective, spec: ModelSpec, batch: Batch) -> None:
    """Sums, counts and gradients of a prepared batch in two pieces are those of the whole."""
    ready = objective.prepare(batch, WORDS, noise())
    rows = len(ready.tokens)
    pieces = [rows_of(ready, 0, 2, rows), rows_of(ready, 2, rows, rows)]
    check_adds_up(objective, built(objective, spec), ready, pieces)


def sees(model: Model, batch: Batch) -> Tensor:
    """[t s]: whether the hidden state t of the only row feels the token s, by gradients."""
    vectors: list[Tensor] = []
    words = next(module for module in model.modules() if isinstance(module, Embedding))
    handle = words.register_forward_hook(lambda _module, _inputs, out: vectors.append(out))
    h = model(batch.tokens, batch.frame, logits=False).y[0]
    handle.remove()
    felt = [torch.autograd.grad(state.square().sum(), vectors[0], retain_graph=True)[0][0] for state in h]
    return torch.stack(felt).abs().sum(-1) > 0
