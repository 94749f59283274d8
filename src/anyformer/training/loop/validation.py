"""The loss on held-out text: always the same batches, processed in the same way."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice

import torch

from anyformer.data.batching.loader import Loader
from anyformer.training.distributed.world import looking
from anyformer.training.loop.feed import Feed, PreparedBatch, micro_batches
from anyformer.training.loop.precision import Purpose, autocast, generator
from anyformer.training.loop.trainer import Trainer


def validate(trainer: Trainer, batches: int, split: str = "valid") -> Mapping[str, float] | None:
    """Loss term -> its mean over everything that counts; None if there is no such split."""
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
    feed = Feed(loader, trainer.objective, seed, purpose=Purpose.EVALUATE, prefetch=False, device=trainer.world.device)
    sums, counts = dict[str, float](), dict[str, float]()
    trainer.entry.eval()
    averaged = trainer.ema.swapped() if trainer.ema else nullcontext()
    with torch.no_grad(), averaged, looking(trainer.entry), trainer.loss_module.with_empty_state() as carried:
        for batch in islice(feed, batches):
            for name, value in _sums(trainer, batch).items():
                sums[name] = sums.get(name, 0.0) + value
            if carried:
                carried.settle()
            for name, count in batch.counts.items():
                counts[name] = counts.get(name, 0.0) + count
    trainer.entry.train()
    return {name: total / counts[name] if counts.get(name) else math.nan for name, total in sums.items()}


def _sums(trainer: Trainer, batch: PreparedBatch) -> dict[str, float]:
    """The sum of each loss term over one batch and all ranks."""
    world, sums = trainer.world, dict[str, torch.Tensor]()
    parts = micro_batches(batch.batch, trainer.progress.micro_batch, world.rank, world.size)
    for index, micro_batch in enumerate(parts):
        rng = generator(trainer.recipe.seed, batch.step, Purpose.EVALUATE, index, world.rank)
        with autocast(trainer.precision, world.device):
            terms = trainer.entry(world.place(micro_batch.batch), rng, batch.counts)
        for name, term in terms.items():
            value = term.sum.double() * micro_batch.counts
            sums[name] = sums[name] + value if name in sums else value
    names = [*batch.counts]
    totals, ranks = world.totals(sums, names).tolist()
    return {name: total for name, total, present in zip(names, totals, ranks, strict=True) if present}
