"""The loss on text that the model does not learn from: always the same batches, asked in the same way."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice

import torch

from anyformer.data.batching.loader import Loader
from anyformer.training.distributed.world import looking
from anyformer.training.loop.feed import Feed, PreparedBatch, pieces
from anyformer.training.loop.precision import autocast
from anyformer.training.loop.randomness import Purpose, generator
from anyformer.training.loop.step_results import held
from anyformer.training.loop.trainer import Trainer


def validate(trainer: Trainer, batches: int, split: str = "valid") -> Mapping[str, float] | None:
    """Term -> its mean over what counts; None where there is no such split."""
    if not trainer.prepared.counts.get(split, {}).get("samples"):
        return None
    seed = trainer.recipe.seed
    loader = Loader(
        prepared=trainer.prepared,
        split=split,
        batch_tokens=trainer.recipe.train.batch_tokens,
        epochs=1,
        shuffle=False,
        even=trainer.compiled,
    )
    feed = Feed(loader, trainer.objective, seed, purpose=Purpose.EVALUATE, ahead=False, device=trainer.world.device)
    sums, counts = dict[str, float](), dict[str, float]()
    trainer.entry.eval()
    averaged = trainer.ema.swapped() if trainer.ema else nullcontext()
    with torch.no_grad(), averaged, looking(trainer.entry), trainer.scored.afresh() as lanes:
        for ready in islice(feed, batches):
            for name, value in _sums(trainer, ready).items():
                sums[name] = sums.get(name, 0.0) + value
            if lanes:
                lanes.settle()
            for name, count in ready.counts.items():
                counts[name] = counts.get(name, 0.0) + count
    trainer.entry.train()
    return {name: total / counts[name] if counts.get(name) else math.nan for name, total in sums.items()}


def _sums(trainer: Trainer, ready: PreparedBatch) -> dict[str, float]:
    """The sums of the terms over one batch and all ranks."""
    world, sums = trainer.world, dict[str, torch.Tensor]()
    for number, piece in enumerate(pieces(ready.batch, trainer.progress.micro_batch, world.rank, world.size)):
        rng = generator(trainer.recipe.seed, ready.step, Purpose.EVALUATE, number, world.rank)
        with autocast(trainer.precision, world.device):
            loss = trainer.entry(world.place(piece.batch), rng, ready.counts)
        for name, term in loss.items():
            value = term.sum.double() * piece.counts
            sums[name] = sums[name] + value if name in sums else value
    names = [*ready.counts]
    return held(names, *world.totals(sums, names).tolist())
