"""The training loop. It yields a `Step` after each update; logging and saving are left to observers.

loss = sum over terms of (sum over everything that counts) / (count over all micro-batches and ranks)
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.shards import Prepared
from anyformer.errors import TrainingError
from anyformer.models.stack import layer_count, recompute, reconstructs
from anyformer.ops.devices import on_gpu, peak_bytes, seed_dropout
from anyformer.optim.average import Ema
from anyformer.optim.optimizer import clip, learned
from anyformer.optim.tunings.tuning_spec import freeze
from anyformer.training.distributed import World, refuse_cut, uses_fsdp, wrapped
from anyformer.training.loop.budget import (
    OUT_OF_MEMORY,
    Budget,
    Progress,
    Status,
    Step,
    budget_of,
    micro_batch_tokens,
    smaller_micro_batch,
    step_flops,
)
from anyformer.training.loop.feed import Feed, Loader, PreparedBatch, Purpose, derive, generator
from anyformer.training.loop.graph_capture import Apply, CapturedPasses, CapturedUpdates, Factors, Passes
from anyformer.training.loop.loss_module import (
    Execution,
    LossModule,
    LossScale,
    Updates,
    autocast,
    build_models,
    compile_layers,
    compile_setting,
    compile_whole,
    execution_of,
    resolve_precision,
    runs_as_graphs,
    takes_more_rows,
)
from anyformer.training.loop.truncated_bptt import carried_state, refuse_carry, refuse_far
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import complete


class Trainer:
    """Builds the model, the optimiser and the data feed of a recipe, and yields a `Step` after each update.

    Without `prepared`, the recipe's data are prepared or taken from the cache, and what the recipe leaves open (the
    vocabulary, the objective) follows from them. Without `world`, this process trains alone on `train.device`.
    `execution`: how the run that is resumed was executed; without it, what `train.compile` means on this device.
    """

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared | None = None,
        world: World | None = None,
        execution: Execution | None = None,
    ):
        if prepared is None:
            recipe, prepared = complete(recipe)
        self.recipe, self.prepared = recipe, prepared
        self.world = world or World().on(recipe.train.device)
        train, device = recipe.train, self.world.device
        assert recipe.objective is not None
        self.objective, sharded = recipe.objective, uses_fsdp(self.world, train.parallel)
        refuse_cut(self.objective, self.world, sharded)
        carries = train.segments == "carry"
        if carries:
            refuse_carry(recipe, self.world)
        self.precision = resolve_precision(train.precision, device)
        self.step_flops = step_flops(recipe.model, train, prepared.context)
        self.budget: Budget = budget_of(train, self.step_flops)
        self.progress = Progress(micro_batch=micro_batch_tokens(recipe, prepared, self.world, self.precision))
        # A model that will be sharded is built on the CPU: it may not fit whole on one device.
        self.models = build_models(recipe, self.objective, torch.device("cpu") if sharded else device)
        rates = freeze(recipe.tune, recipe.model, self.models["model"]) if recipe.tune else {}
        self.loss_module = LossModule(self.objective, self.models)
        if prepared.packing.continues:
            refuse_far(self.loss_module.model, prepared)
        if carries:
            self.loss_module.carried = carried_state(recipe, prepared, self.loss_module.model)
        recompute(self.loss_module.model, train.recompute)
        updates, setting = self._updates(sharded), compile_setting(self.objective, train)
        execution = execution or execution_of(setting, updates, gpu=on_gpu(device))
        self.execution: Execution = possible_here(execution, updates)
        self.compiled = self.execution in ("compiled", "recorded")
        self.captured = updates.capturable and self.execution in ("captured", "layers")
        # code that is compiled for all shapes gains nothing from more padding, but a graph is captured for one shape
        in_layers = self.execution == "layers"
        self.even = self.captured or ((self.compiled or in_layers) and updates.one_shape)
        if self.compiled or in_layers:
            self.loss_module.recorded = self.execution == "recorded"
            compile_model = compile_layers if sharded or in_layers else compile_whole
            compile_model(self.loss_module, None if updates.one_shape else True)
        self.entry = wrapped(self.loss_module, self.world, train.parallel)
        self._modules = [*self.entry.modules()]
        self.learned = learned(self.models, rates)
        self.optimizer = recipe.optimizer.build(self.learned)
        self.passes: Passes = self._forward_backward
        self.apply: Apply = self._apply
        if self.captured:
            parameters, device = [entry.tensor for entry in self.learned], self.world.device
            self.passes = passes = CapturedPasses(self._forward_backward, parameters, self.world.place)
            if self.optimizer.runs_on(device) and self.precision != "fp16":  # its loss scale is a number of the host
                self.apply = CapturedUpdates(self._apply, passes, self.optimizer, device)
        self.ema = Ema({entry.name: entry.tensor for entry in self.learned}, train.ema) if train.ema else None
        self.scale = LossScale.of(self.precision)
        self.feed()  # refuses a batch that is too small before anything is written

    def _updates(self, sharded: bool) -> Updates:
        """The facts from which it follows whether compiling pays off."""
        loss_module, one_shape = self.loss_module, self.prepared.packing.one_shape
        as_graphs = not sharded and runs_as_graphs(loss_module, self.world, self.step_flops)
        few_shapes = one_shape or takes_more_rows(self.objective, self.recipe.model)
        computes_again = self.recipe.train.recompute != "none" or reconstructs(loss_module.model)
        return Updates(
            steps=self.budget.steps,
            seconds=self.budget.seconds,
            flops=self.step_flops,
            layers=layer_count(loss_module.model),
            one_shape=one_shape,
            recordable=as_graphs and one_shape,
            # recomputation saves the state of the random generator, which cannot be read in a capture
            capturable=as_graphs and few_shapes and not computes_again,
        )

    def steps(self) -> Iterator[Step]:
        """Yield one `Step` per update until the run is finished."""
        started = time.perf_counter()
        for batch in self.feed():
            if self.finished():
                return
            yield self.update(batch, started)
            started = time.perf_counter()

    def finished(self) -> bool:
        """True if the budget is spent, or the validation loss shows that the model over-fits (`train.stop`)."""
        progress, stop = self.progress, self.recipe.train.stop
        return self.budget.spent(progress.step, progress.wall_s) or 0 < stop <= progress.worse

    def update(self, batch: PreparedBatch, started: float | None = None) -> Step:
        """One optimiser update from one batch. `started`: when the wait for the batch began, for the step's time."""
        started = time.perf_counter() if started is None else started
        progress, random_state = self.progress, torch.get_rng_state()
        total_steps = self.budget.total(progress.step, progress.wall_s)
        lr_factor = self.recipe.schedule.factor(progress.step, total_steps)
        sums = self._backward(batch)
        torch.set_rng_state(random_state)  # dropout is drawn from torch's generator, which is the caller's too
        numbers = self.apply(sums, [*batch.counts], None if batch.empty else lr_factor)
        self.optimizer.zero_grad()
        peak = peak_bytes(self.world.device)
        *totals, norm = numbers.tolist()  # the only synchronisation with the device in an update
        losses = mean_losses(totals, batch.counts)
        status = self._status(math.fsum(losses.values()), norm, batch)
        if status == "applied" and self.ema:
            self.ema.update()
        seconds = self.world.maximum(time.perf_counter() - started)
        self._advance(batch, status, seconds)
        return Step(
            number=progress.step,
            loss=math.fsum(losses.values()),
            terms=losses,
            lr=self.recipe.optimizer.lr * lr_factor,
            gradient_norm=norm,
            tokens=progress.tokens,
            epoch=batch.position.epoch,
            status=status,
            wall_s=progress.wall_s,
            tokens_per_s=batch.tokens / seconds,
            peak_bytes=peak,
        )

    def _backward(self, batch: PreparedBatch) -> dict[str, Tensor]:
        """Forward and backward over all micro-batches; the sum of each loss term over the rows of this rank.

        When memory runs out, starts again with micro-batches of half the size."""
        while True:
            try:
                return self._accumulate(batch)
            except OUT_OF_MEMORY as error:
                size = self.progress.micro_batch
                self.progress.micro_batch = smaller_micro_batch(error, batch.batch, size, self.recipe, self.world)
            self.optimizer.zero_grad()

    def _accumulate(self, batch: PreparedBatch) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        if batch.empty:
            return sums
        carried = self.loss_module.carried
        if carried and self.progress.position.unit == 0:  # the first batch of an epoch
            carried.begin()
        parts = batch.split(self.progress.micro_batch, self.world.rank, self.world.size)
        for index, (micro_batch, counts) in enumerate(parts):
            is_last = index == len(parts) - 1
            with nullcontext() if is_last else self.world.without_sync(self.entry):
                terms = self._score(batch, micro_batch, index, 1.0 if counts else 0.0)
            for name, value in terms.items():
                value = value.float() if counts else torch.zeros_like(value, dtype=torch.float32)
                sums[name] = sums[name] + value if name in sums else value
            if self.loss_module.recorded and not is_last:  # the next replay of its CUDA graph overwrites the gradients
                for entry in self.learned:
                    entry.tensor.grad = None if entry.tensor.grad is None else entry.tensor.grad.clone()
        return sums

    def _score(self, batch: PreparedBatch, micro_batch: Batch, index: int, weight: float = 1.0) -> Mapping[str, Tensor]:
        """Forward and backward over one micro-batch; the sum of each loss term."""
        seed, rank = self.recipe.seed, self.world.rank
        seed_dropout(self.world.device, derive(seed, batch.step, Purpose.DROPOUT, index, rank))
        rng = generator(seed, batch.step, Purpose.LOSS, index, rank)
        if not all(module.training for module in self._modules):  # cheaper than calling train() on every module
            self.entry.train()
        # Divide by the counts of the whole batch: the gradient must not depend on how the batch is split.
        # DDP and FSDP average gradients over ranks; multiply by the world size to get their sum.
        factor = weight * self.scale.value * self.world.size
        factors = {name: factor / batch.counts[name] for name in batch.counted}
        whole = len(micro_batch.tokens) == len(batch.batch.tokens)
        return (self.passes if whole else self._forward_backward)(micro_batch, rng, factors)

    def _forward_backward(self, batch: Batch, rng: torch.Generator, factors: Factors) -> Mapping[str, Tensor]:
        """Forward and backward over rows of a batch; the sum of each loss term."""
        with autocast(self.precision, self.world.device):
            terms = self.entry(self.world.place(batch), rng, factors.keys())
        loss = sum(term.sum * factors[name] for name, term in terms.items())
        if isinstance(loss, Tensor):
            loss.backward()
        return {name: term.sum.detach() for name, term in terms.items()}

    def _apply(self, sums: Mapping[str, Tensor], names: Sequence[str], lr_factor: float | Tensor | None) -> Tensor:
        """Clips the gradients and updates the weights, unless a number is not finite or there is no rate. Returns the
        totals of the loss terms and the norm of the gradients, on the device."""
        gradient_norm = self._clip_gradients()
        numbers = torch.cat((self.world.totals(sums, names).flatten(), gradient_norm.reshape(1)))
        if lr_factor is not None:
            # Checked on the device: the host would have to wait for the numbers before it could launch the update.
            self.optimizer.step(lr_factor, unless=numbers.isfinite().all().logical_not().float())
        return numbers

    def _clip_gradients(self) -> Tensor:
        """The norm of all gradients before clipping, on the device."""
        parameters = [entry.tensor for entry in self.learned if entry.tensor.grad is not None]
        if not parameters:
            return torch.zeros((), device=self.world.device)
        self.scale.undo([tensor.grad for tensor in parameters if tensor.grad is not None])
        return clip(parameters, self.recipe.train.clip or None).to(self.world.device)

    def _status(self, loss: float, norm: float, batch: PreparedBatch) -> Status:
        if batch.empty:
            return "empty"
        if math.isfinite(loss) and math.isfinite(norm):
            return "applied"
        return "overflow" if math.isfinite(loss) and self.precision == "fp16" else "non_finite"

    def _advance(self, batch: PreparedBatch, status: Status, seconds: float) -> None:
        progress = self.progress
        if self.loss_module.carried:
            self.loss_module.carried.settle(good=status != "non_finite")
        if self.precision == "fp16" and status != "empty":
            self.scale.settle(status == "overflow")
        progress.step, progress.position = batch.step + 1, batch.position
        progress.tokens, progress.wall_s = progress.tokens + batch.tokens, progress.wall_s + seconds
        progress.scale, progress.calm = self.scale.value, self.scale.calm
        progress.skipped = progress.skipped + 1 if status in ("non_finite", "overflow") else 0
        if status == "non_finite" and progress.skipped >= self.recipe.train.patience:
            raise TrainingError(
                f"step {progress.step}: loss or gradient was not finite {progress.skipped} times in a row; these "
                f"updates were not applied. The usual cause is a learning rate that is too high: "
                f"optimizer.lr={self.recipe.optimizer.lr:g}. Try a tenth of it, more schedule.warmup, or train.clip=1."
            )

    def feed(self) -> Feed:
        """The prepared batches from the current position on."""
        progress, train = self.progress, self.recipe.train
        loader = Loader(
            prepared=self.prepared, seed=self.recipe.seed, batch_tokens=train.batch_tokens, workers=train.workers,
            start=progress.position, even=self.even,
        )  # fmt: skip
        return Feed(
            loader, self.objective, self.recipe.seed, first_step=progress.step, device=self.world.device,
            few_heights=self.captured and not self.prepared.packing.one_shape,
        )  # fmt: skip


def possible_here(execution: Execution, updates: Updates) -> Execution:
    """The execution of a run that is resumed, or what comes next to it where CUDA graphs are not possible."""
    if execution == "recorded" and not updates.recordable:
        return "compiled"
    return "eager" if execution == "captured" and not updates.capturable else execution


def mean_losses(totals: list[float], counts: Mapping[str, float]) -> dict[str, float]:
    """Loss term -> its mean over everything that counts. `totals`: the sums of all terms, then how many ranks have
    each; a term that no rank has, or of which nothing counts, is left out."""
    sums, ranks = totals[: len(counts)], totals[len(counts) :]
    return {
        name: total / counts[name]
        for name, total, present in zip(counts, sums, ranks, strict=True)
        if present and counts[name]
    }
