"""What a blind guess reaches: the best that can be said of each target without reading anything, the unigram loss."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from tests.learning.reading import batches, data_of, objective_of
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.regress import Regress
from anyformer.objectives.replaced_token import ReplacedToken, fill_in
from anyformer.objectives.word_order import SHUFFLED, ShuffledWords
from anyformer.objectives.words import read
from anyformer.run import Run
from anyformer.training.loop.loss_module import build_models
from anyformer.training.runs import checkpoint
from anyformer.training.runs.checkpoint import load_weights

MOST = 200
"""Batches of the training split that are counted."""


class Asked(NamedTuple):
    """What one term of the loss asks for, [n] each."""

    term: str
    targets: Tensor
    weight: Tensor


def blind_losses(run: Run, cache: Path) -> dict[str, float]:
    """Term -> its loss on the validation split for who knows only how often each answer came in training."""
    objective, prepared = objective_of(run), data_of(run, cache)
    valid = list(batches(run, prepared))
    if isinstance(objective, Contrastive):
        rows = [len(batch.tokens) for batch in valid]
        return {"pairs": sum(size * math.log(size) for size in rows) / sum(rows)}
    if isinstance(objective, Regress):
        labels = torch.cat([batch.labels.label for batch in valid]).float()
        return {"label": labels.var(correction=0).item()}
    counts = dict[str, Tensor]()
    for asked in (it for batch in islice(batches(run, prepared, "train"), MOST) for it in _asked(batch)):
        classes = objective.outcomes or prepared.contents.choices
        size = classes if asked.term in ("label", "tags") else prepared.words.size
        counts.setdefault(asked.term, torch.full((size,), 0.1)).index_add_(0, asked.targets, asked.weight)
    logs = {term: (count / count.sum()).log() for term, count in counts.items()}
    sums, total = dict.fromkeys(logs, 0.0), dict.fromkeys(logs, 0.0)
    for term, targets, weight in (it for batch in valid for it in _asked(batch)):
        sums[term] -= (logs[term][targets] * weight).sum().item()
        total[term] += weight.sum().item()
    found = {term: sums[term] / total[term] for term in sums}
    return {**found, "replaced": _replaced(run, valid)} if isinstance(objective, ReplacedToken) else found


def _asked(batch: Batch, prefix: str = "") -> Iterator[Asked]:
    for name, part in batch.parts.items():
        yield from _asked(part, f"{name}.")
    if batch.parts:
        return
    if batch.targets is not None and batch.weight is not None:
        term = "tags" if batch.labels.tags is not None else "words"
        yield Asked(prefix + term, batch.targets.flatten(), batch.weight.flatten())
        if isinstance(batch.inputs, ShuffledWords):
            yield Asked(prefix + SHUFFLED, batch.targets.flatten(), batch.inputs.weight.flatten())
    label = batch.labels.label
    if label is not None:
        yield Asked(prefix + "label", label, torch.ones(len(label)))


@torch.no_grad()
def _replaced(run: Run, valid: list[Batch]) -> float:
    """The entropy of being replaced or not, with the generator as it is at the end."""
    objective = objective_of(run)
    assert isinstance(objective, ReplacedToken)
    models = build_models(run.recipe, objective, torch.device("cpu"))
    stored = checkpoint.read(run.checkpoints[0])
    for name, model in models.items():
        load_weights(model, stored[name], partly=name != "model")
    generator, wrong, there = models["generator"].eval(), 0.0, 0.0
    for batch in valid:
        filled = fill_in(generator, read(generator, batch).h, batch)
        assert batch.frame.valid is not None
        wrong += ((filled != batch.targets) & batch.frame.valid).sum().item()
        there += batch.frame.valid.sum().item()
    share = wrong / there
    return -objective.weight * (share * math.log(share) + (1 - share) * math.log(1 - share))
