"""Small models and batches for the objectives, and the property that all of them must have: losses add up."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tests.checking import unchecked
from torch import Tensor, nn

from anyformer.core import Frame, Model, ModelSpec, initialise
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.objectives.objective import Objective, Term
from anyformer.objectives.words import PARTS
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention

WORDS = Vocabulary(size=40, pad=0, unk=1, bos=2, eos=3, sep=4, cls=5, mask=6, sentinels=(7, 8, 9))
DIM = 16
LENGTHS = (7, 3, 9, 5, 1, 6)


def model(shape: type[Decoder] | type[Encoder] = Encoder, depth: int = 2, **fields: Any) -> Decoder | Encoder:
    branches = (Branch(part=Attention(heads=2)), Branch(part=MLP(hidden=24)))
    stack = Stack(blocks={"layer": Block(branches=branches)}, depth=depth)
    return shape(vocab=WORDS.size, dim=DIM, stack=stack, max_len=64, **fields)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(length: int, seed: int) -> list[int]:
    """Plain words."""
    return torch.randint(10, WORDS.size, (length,), generator=noise(seed)).tolist()


def laid(rows: Sequence[list[int]]) -> Batch:
    """As the data give it: filled up on the right."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[WORDS.pad] * (width - len(row))] for row in rows])
    return Batch(tokens=tokens, frame=Frame(valid=tokens != WORDS.pad))


def batch(seed: int = 0, source: bool = False, **labels: Tensor) -> Batch:
    """Six texts of several lengths."""
    texts = laid([ids(length, seed + place) for place, length in enumerate(LENGTHS)])
    other = laid([ids(length, seed + 50 + place) for place, length in enumerate(reversed(LENGTHS))]) if source else None
    return Batch(tokens=texts.tokens, frame=texts.frame, source=other, labels=RowLabels(**labels))


def built(objective: Objective, spec: ModelSpec, teacher: ModelSpec | None = None) -> dict[str, Model]:
    """The model and its companions, ready to be trained; `teacher` stands for every model of another run."""
    adapted = objective.adapt(spec)
    specs = {"model": adapted, **objective.companions(adapted), **{name: teacher for name in objective.pretrained}}
    models = {name: each.build(seed=1 + place) for place, (name, each) in enumerate(specs.items())}
    for name, projection in objective.projections(adapted, {name: teacher for name in objective.pretrained}).items():
        initialise(projection, adapted.scheme, seed=1)
        models[name] = projection
    for name in objective.pretrained:
        models[name].requires_grad_(False)
    for parameter in (parameter for each in models.values() for parameter in each.parameters()):
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=noise(parameter.numel())))
    objective.tie(models)
    return models


def rows_of(batch: Batch, start: int, stop: int, of: int) -> Batch:
    """Some of the rows of a prepared batch, which has as many as there are texts."""
    assert len(batch.tokens) == of
    return batch.take(torch.arange(start, stop))


def pieces(batch: Batch) -> list[Batch]:
    """Six texts in three micro-batches."""
    return [rows_of(batch, start, stop, of=6) for start, stop in ((0, 1), (1, 4), (4, 6))]


def gradients(models: dict[str, Model]) -> dict[str, Tensor]:
    found = {}
    for model_name, each in models.items():
        for name, parameter in each.named_parameters():
            if parameter.grad is not None:
                found[f"{model_name}.{name}"] = parameter.grad
                parameter.grad = None
    return found


def step(objective: Objective, models: dict[str, Model], pieces: Sequence[Batch]) -> dict[str, Term]:
    """What a trainer does: counts of all pieces first, then the pieces one by one."""
    counts: dict[str, Tensor] = {}
    for piece in pieces:
        for name, count in objective.counts(piece).items():
            counts[name] = counts.get(name, torch.zeros(())) + count
    sums: dict[str, Term] = {}
    for piece in pieces:
        terms = objective.loss(models, piece, noise())
        assert {*terms, PARTS} == {*objective.counts(piece), PARTS}
        sum((term.sum / counts[name] for name, term in terms.items()), torch.zeros(())).backward()
        for name, term in terms.items():
            before = sums.get(name, Term(torch.zeros(()), torch.zeros(())))
            sums[name] = Term(before.sum + term.sum.detach(), before.weight + term.weight)
    for name, term in sums.items():
        assert torch.equal(term.weight, counts[name]), name
    return sums


def check_adds_up(objective: Objective, models: dict[str, Model], whole: Batch, pieces: Sequence[Batch]) -> None:
    """Micro-batches give what the whole batch gives: every sum, every count, every gradient."""
    together = step(objective, models, [whole])
    expected = gradients(models)
    apart = step(objective, models, pieces)
    found = gradients(models)
    assert expected and expected.keys() == found.keys() and apart.keys() == together.keys()
    for name, term in together.items():
        torch.testing.assert_close(apart[name].sum, term.sum, rtol=1e-5, atol=1e-5)
        assert torch.equal(apart[name].weight, term.weight) and term.weight > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def learn(
    objective: Objective, models: dict[str, Model], batches: Sequence[Batch], steps: int, lr: float = 3e-3
) -> None:
    """Plain training, batch after batch; shapes are checked of the first."""
    parameters = nn.ModuleList(models.values()).parameters()  # each once, shared or not
    optimizer = torch.optim.Adam([each for each in parameters if each.requires_grad], lr=lr)
    for at in range(steps):
        with unchecked() if at else nullcontext():
            step(objective, models, [batches[at % len(batches)]])
        optimizer.step()
        optimizer.zero_grad()
