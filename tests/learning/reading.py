"""What a trained model makes of the validation split, place by place."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from anyformer.core import Model
from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.objectives.objective import Objective
from anyformer.run import Run
from anyformer.training.loop.feed import Loader, Purpose, generator


def data_of(run: Run, cache: Path) -> Prepared:
    """What a run read."""
    assert run.recipe.data is not None
    return prepared_for(run.recipe.data, cache)


def objective_of(run: Run) -> Objective:
    assert run.recipe.objective is not None
    return run.recipe.objective


def batches(run: Run, prepared: Prepared, split: str = "valid") -> Iterator[Batch]:
    """A split, once, as the objective of the run asks it."""
    loader = Loader(prepared=prepared, split=split, batch_tokens=run.recipe.train.batch_tokens, epochs=1, shuffle=False)
    for step, (batch, _) in enumerate(loader):
        yield objective_of(run).prepare(batch, prepared.words, generator(1, step, Purpose.EVALUATE))


@torch.no_grad()
def symbol_loss(run: Run, cache: Path, symbols: str) -> float:
    """The mean loss where one of these symbols is asked for: not at ends of texts, nor between spans."""
    prepared, model, sums, count = data_of(run, cache), run.model(), 0.0, 0.0
    ids = torch.tensor([prepared.tokenizer.encode(symbol)[0] for symbol in symbols])
    for batch in batches(run, prepared):
        assert batch.weight is not None and batch.targets is not None
        asked = replace(batch, weight=batch.weight * torch.isin(batch.targets, ids))
        term = objective_of(run).loss({"model": model}, asked, torch.Generator())["words"]
        sums, count = sums + term.sum.item(), count + term.weight.item()
    return sums / count


@torch.no_grad()
def tags(run: Run, cache: Path) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of what a tagger read, what it says and what is right (-1: not asked), each [b t]."""
    prepared, model = data_of(run, cache), run.model()
    for batch in batches(run, prepared):
        assert batch.weight is not None and batch.targets is not None
        yield batch.tokens, said(model, batch), batch.targets.where(batch.weight > 0, -1)


def exact(run: Run, cache: Path) -> float:
    """Share of the validation split, targets of at most 30 tokens, that is written without a mistake, end included."""
    prepared = data_of(run, cache)
    words, sides = prepared.words, prepared.split("valid").sides
    sources, targets = ([it[row].tolist() for row in range(len(it))] for it in (sides["source"], sides["tokens"]))
    engine = Engine(run.model(), max_len=32, bos=words.bos, batch=256)
    requests = [Request(source=[*source, words.sep]) for source in sources]
    written = engine.generate(requests, Greedy(), max_new=30, stop=[words.eos])
    return sum(list(mine.tokens) == target for mine, target in zip(written, targets, strict=True)) / len(targets)


def said(model: Model, batch: Batch) -> Tensor:
    """The likeliest class at each place."""
    return model(batch.tokens, batch.frame).y.argmax(-1)
