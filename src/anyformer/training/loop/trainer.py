"""The loop. It yields facts and knows no logger: what is done with them is up to its observers.

loss = sum over terms of (sum over everything that counts) / (count over micro-batches and ranks)
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.data.batching.loader import Loader
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import TrainingError
from anyformer.optim.average import Ema
from anyformer.optim.clipping import clip
from anyformer.optim.groups import learned
from anyformer.training.distributed.world import World, divides, refuse_cut, wrapped
from anyformer.training.loop import memory
from anyformer.training.loop.ahead import Coming, may_ask_ahead
from anyformer.training.loop.budget import Budget, budget_of, step_flops
from anyformer.training.loop.feed import Feed, MicroBatch, PreparedBatch, pieces
from anyformer.training.loop.loss_module import (
    LossModule,
    build_models,
    compile_layers,
    compile_whole,
    compiles,
    replays,
)
from anyformer.training.loop.precision import LossScale, autocast, resolve_precision
from anyformer.training.loop.progress import Progress
from anyformer.training.loop.randomness import Purpose, generator, reseed
from anyformer.training.loop.recompute import recompute
from anyformer.training.loop.step import Fate, Step
from anyformer.training.loop.step_results import StepResults
from anyformer.training.loop.truncated_bptt import lanes_of, refuse_carry, refuse_far
from anyformer.training.recipes.recipe import Recipe


class Asked(NamedTuple):
    """A batch whose gradients the device was asked for."""

    ready: PreparedBatch
    figures: StepResults


class Trainer:
    """A recipe at work on prepared data."""

    def __init__(self, recipe: Recipe, prepared: Prepared, world: World | None = None):
        self.recipe, self.prepared = recipe, prepared
        self.world = world or World()
        train, device = recipe.train, self.world.device
        assert recipe.objective is not None
        self.objective, divided = recipe.objective, divides(self.world, train.parallel)
        refuse_cut(self.objective, self.world, divided)
        refuse_carry(recipe, self.world)
        self.precision = resolve_precision(train.precision, device)
        self.step_flops = step_flops(recipe.model, train, prepared.context)
        self.budget: Budget = budget_of(train, self.step_flops)
        self.progress = Progress(micro_batch=memory.micro_batch(recipe, prepared, self.world, self.precision))
        # what will be divided never lies whole on its device
        self.models = build_models(recipe, self.objective, torch.device("cpu") if divided else device)
        self.scored = LossModule(self.objective, self.models)
        refuse_far(self.scored.model, prepared)
        self.scored.lanes = lanes_of(recipe, prepared, self.scored.model)
        recompute(self.scored.model, train.recompute)
        self.compiled = compiles(train, device, self.budget, self.step_flops)
        if self.compiled:
            dynamic = None if prepared.packing.one_shape else True
            self.scored.replayed = not divided and replays(self.scored, self.world, dynamic, self.step_flops)
            compile_layers(self.scored, dynamic) if divided else compile_whole(self.scored, dynamic)
        self.entry = wrapped(self.scored, self.world, train.parallel)
        self._modules = [*self.entry.modules()]
        self.learned = learned(self.models)
        self.optimizer = recipe.optimizer.build(self.learned)
        self.ema = Ema({it.name: it.tensor for it in self.learned}, train.ema) if train.ema else None
        self.scale = LossScale.of(self.precision)
        self.asks_ahead = may_ask_ahead(self.scored, self.world, self.precision)
        self.feed()  # refuses a batch that is too small before anything is written

    def steps(self) -> Iterator[Step]:
        """One update after the other, until the budget is spent."""
        batches = Coming(self.feed())
        updates = Coming(self._asked(batches))
        began = time.perf_counter()
        try:
            while (asked := updates.take()) is not None and not self._is_spent(self.progress.step):
                factor = self._apply(asked)
                if self.asks_ahead:
                    updates.fetch()
                batches.fetch()  # its thread wants the interpreter then, and the host has asked for all that it can
                yield self._settle(asked, factor, began)
                began = time.perf_counter()
        finally:
            self.optimizer.zero_grad()  # what was asked for ahead is nobody's

    def update(self, ready: PreparedBatch) -> Step:
        """One update by a batch of one's own; not between those of `steps`, which may have asked for the next."""
        began, asked = time.perf_counter(), self._ask(ready)
        return self._settle(asked, self._apply(asked), began)

    def _asked(self, batches: Coming[PreparedBatch]) -> Iterator[Asked]:
        while (ready := batches.take()) is not None and not self._is_spent(ready.step):
            yield self._ask(ready)

    def _is_spent(self, step: int) -> bool:
        return self.budget.spent(step, self.progress.wall_s)

    def _ask(self, ready: PreparedBatch) -> Asked:
        return Asked(ready, self._gradients(ready))

    def _apply(self, asked: Asked) -> float:
        """Moves the weights; gives the schedule's share of the learning rate."""
        step = self.progress.step
        factor = self.recipe.schedule.factor(step, self.budget.total(step, self.progress.wall_s))
        if not asked.ready.empty:
            self.optimizer.step(factor, unless=asked.figures.wrong)
        self.optimizer.zero_grad()
        return factor

    def _settle(self, asked: Asked, factor: float, began: float) -> Step:
        """Reads what came of an update, and counts it."""
        ready, progress = asked.ready, self.progress
        peak = memory.peak(self.world.device)
        sums, norm = asked.figures.read()  # the one wait of an update: all that it asks of the device has been asked
        terms = {name: value / ready.counts[name] for name, value in sums.items() if ready.counts[name]}
        loss = math.fsum(terms.values())
        fate = self._fate(loss, norm, ready)
        if fate == "applied" and self.ema:
            self.ema.update()
        spent = self.world.most(time.perf_counter() - began)
        self._advance(ready, fate, spent)
        return Step(
            number=progress.step,
            loss=loss,
            terms=terms,
            lr=self.recipe.optimizer.lr * factor,
            gradient_norm=norm,
            tokens=progress.tokens,
            epoch=ready.position.epoch,
            fate=fate,
            wall_s=progress.wall_s,
            tokens_per_s=ready.tokens / spent,
            peak_bytes=peak,
        )

    def _gradients(self, ready: PreparedBatch) -> StepResults:
        """Backward over all pieces; the sums of the terms over all ranks, and the norm of the whole gradient."""
        while True:
            try:
                sums = self._backward(ready)
                break
            except memory.OUT_OF_MEMORY as error:
                now = self.progress.micro_batch
                self.progress.micro_batch = memory.smaller(error, ready.batch, now, self.recipe, self.world)
            self.optimizer.zero_grad()
        parameters = [it.tensor for it in self.learned if it.tensor.grad is not None]
        self.scale.undo([tensor.grad for tensor in parameters if tensor.grad is not None])
        norm = clip(parameters, self.recipe.train.clip or None) if parameters else torch.zeros(())
        names = [*ready.counts]
        return StepResults(names, self.world.totals(sums, names), norm)

    def _backward(self, ready: PreparedBatch) -> dict[str, Tensor]:
        if self.scored.lanes and self.progress.position.unit == 0:  # the first batch of an epoch
            self.scored.lanes.begin()
        parts = pieces(ready.batch, self.progress.micro_batch, self.world.rank, self.world.size)
        sums: dict[str, Tensor] = {}
        if ready.empty:
            return sums
        for number, piece in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else self.world.without_sync(self.entry):
                self._add(sums, self._score(ready, piece, number), piece)
            if self.scored.replayed and not last:
                self._keep_gradients()
        return sums

    def _keep_gradients(self) -> None:
        """Those of a recorded graph lie where its next call writes."""
        for it in self.learned:
            it.tensor.grad = None if it.tensor.grad is None else it.tensor.grad.clone()

    def _score(self, ready: PreparedBatch, piece: MicroBatch, number: int) -> Mapping[str, Tensor]:
        """Forward and backward over one piece; the sums of its terms."""
        seed, rank = self.recipe.seed, self.world.rank
        reseed(self.world.device, seed, ready.step, Purpose.DROPOUT, number, rank)
        rng = generator(seed, ready.step, Purpose.LOSS, number, rank)
        if not all(module.training for module in self._modules):  # to ask is cheap, to tell every module is not
            self.entry.train()
        with autocast(self.precision, self.world.device):
            loss = self.entry(self.world.place(piece.batch), rng, ready.counts)
        share = self.scale.value * self.world.size if piece.counts else 0.0  # ranks are averaged, sums are meant
        total = sum(term.sum * (share / ready.counts[name]) for name, term in loss.items())
        if isinstance(total, Tensor):
            total.backward()
        return {name: term.sum.detach() for name, term in loss.items()}

    @staticmethod
    def _add(sums: dict[str, Tensor], more: Mapping[str, Tensor], piece: MicroBatch) -> None:
        for name, value in more.items():
            value = value.float() if piece.counts else torch.zeros_like(value, dtype=torch.float32)
            sums[name] = sums[name] + value if name in sums else value

    def _fate(self, loss: float, norm: float, ready: PreparedBatch) -> Fate:
        if ready.empty:
            return "empty"
        if math.isfinite(loss) and math.isfinite(norm):
            return "applied"
        return "overflow" if math.isfinite(loss) and self.precision == "fp16" else "non_finite"

    def _advance(self, ready: PreparedBatch, fate: Fate, spent: float) -> None:
        progress = self.progress
        if self.scored.lanes:
            self.scored.lanes.settle(good=fate != "non_finite")
        if self.precision == "fp16" and fate != "empty":
            self.scale.settle(fate == "overflow")
        progress.step, progress.position = ready.step + 1, ready.position
        progress.tokens, progress.wall_s = progress.tokens + ready.tokens, progress.wall_s + spent
        progress.scale, progress.calm = self.scale.value, self.scale.calm
        progress.skipped = progress.skipped + 1 if fate in ("non_finite", "overflow") else 0
        if fate == "non_finite" and progress.skipped >= self.recipe.train.patience:
            raise TrainingError(
                f"step {progress.step}: loss or gradient was not a number {progress.skipped} times in a row; these "
                f"updates were not applied. The usual cause is a learning rate that is too high: "
                f"optimizer.lr={self.recipe.optimizer.lr:g}. Try a tenth of it, more schedule.warmup, or train.clip=1."
            )

    def feed(self) -> Feed:
        """Its batches from where it is, prepared."""
        progress, train = self.progress, self.recipe.train
        loader = Loader(
            prepared=self.prepared,
            seed=self.recipe.seed,
            batch_tokens=train.batch_tokens,
            workers=train.workers,
            start=progress.position,
            even=self.compiled,
        )
        return Feed(loader, self.objective, self.recipe.seed, first_step=progress.step, device=self.world.device)
