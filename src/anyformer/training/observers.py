"""Observers, called after every step: bad batches, the validation loss, sampled texts, and checkpoints of the trainer,
from which it is restored.

None of them changes the results of a run: random states are restored, and the model returns to training mode.
"""

import json
import math
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import CHECKPOINTS, SAMPLES, by_step, step_name, store
from anyformer.errors import CheckpointError, ResourceError, SpecError
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.objective import Predictor
from anyformer.ops.devices import compiled_code_runs_eagerly, fork_rng, shard_like
from anyformer.training.distributed import Files, forward_only, gathered, has_shards, local_shard, uses_fsdp
from anyformer.training.loop.budget import Moments, Progress, Step
from anyformer.training.loop.feed import Feed, Loader, PreparedBatch, Purpose, derive, generator
from anyformer.training.loop.loss_module import LossScale, autocast
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs import checkpoint
from anyformer.training.runs.checkpoint import load_weights
from anyformer.training.runs.run_folder import RunFolder, finite
from anyformer.training.runs.starting import StartingPoint


def validate(
    trainer: Trainer, batches: int | None, split: str = "valid", batch_tokens: int | None = None
) -> Mapping[str, float] | None:
    """Loss term -> its mean over everything that counts in some batches, or in all of them (None); None if there is no
    such split. `batch_tokens`: tokens of a batch; those of training if not given."""
    if not trainer.prepared.counts.get(split, {}).get("samples"):
        return None
    seed, tokens = trainer.recipe.seed, batch_tokens or trainer.recipe.train.batch_tokens
    even = trainer.compiled and trainer.even
    loader = Loader(prepared=trainer.prepared, split=split, batch_tokens=tokens, epochs=1, shuffle=False, even=even)
    feed = Feed(loader, trainer.objective, seed, purpose=Purpose.EVALUATE, prefetch=False, device=trainer.world.device)
    sums, counts = dict[str, float](), dict[str, float]()
    trainer.entry.eval()
    averaged = trainer.ema.swapped() if trainer.ema else nullcontext()
    with torch.no_grad(), averaged, forward_only(trainer.entry), trainer.loss_module.with_empty_state() as carried:
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
    parts = batch.split(trainer.progress.micro_batch, world.rank, world.size)
    for index, (micro_batch, counts) in enumerate(parts):
        rng = generator(trainer.recipe.seed, batch.step, Purpose.EVALUATE, index, world.rank)
        with autocast(trainer.precision, world.device):
            terms = trainer.entry(world.place(micro_batch), rng, batch.counted)
        for name, term in terms.items():
            value = term.sum.double() * counts
            sums[name] = sums[name] + value if name in sums else value
    totals, ranks = world.totals(sums, [*batch.counts]).tolist()
    return {name: total for name, total, present in zip(batch.counts, totals, ranks, strict=True) if present}


WINDOW, LEAST = 100, 20
JUMP = 6.0
"""A loss this many standard deviations above the mean of recent steps counts as a spike."""


class Trouble:
    """Logs the loader position of a bad batch, from which the seed reproduces that batch."""

    def __init__(self, trainer: Trainer, folder: RunFolder):
        self.trainer, self.folder = trainer, folder
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.before = trainer.progress.position

    def __call__(self, step: Step) -> None:
        place, self.before = list(self.before), self.trainer.progress.position
        if step.status != "applied":
            self.folder.event(step.status, step=step.number, position=place, loss=finite(step.loss))
            return
        if len(self.recent) >= LEAST and step.loss > fmean(self.recent) + JUMP * max(stdev(self.recent), 1e-3):
            self.folder.event("spike", step=step.number, position=place, loss=step.loss, usual=fmean(self.recent))
        self.recent.append(step.loss)


EXAMPLES = 4
"""Number of validation texts used as prompts if the model needs a source and the recipe sets no prompts."""


class Sampling:
    """Generates text for the prompts of the recipe, if the model can generate, and writes it to
    samples/step-000500.jsonl, a line {"prompt", "text"} for each prompt."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments, log: Callable[[str], None]):
        self.trainer, self.folder, self.when, self.log = trainer, folder, when, log
        recipe = trainer.recipe
        self.able = recipe.model.decodes and any("generate" in part.serves for part in trainer.objective.parts)
        if self.able and uses_fsdp(trainer.world, recipe.train.parallel):
            self.able = False
            log("no samples during training: the model is sharded (train.parallel=fsdp). Use ddp to get samples.")

    def __call__(self, step: Step) -> None:
        if not self.able or not self.when(step):
            return
        try:
            self._sample(step.number)
        except Exception as error:  # a failed sample must not stop the run
            self.able = False
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            self.folder.event("samples_failed", step=step.number, why=reason)
            self.log(f"sampling failed and is turned off for this run ({reason}).")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.trainer.prepared.tokenizer

    def _sample(self, step: int) -> None:
        trainer, prepared = self.trainer, self.trainer.prepared
        predictor = Predictor(  # a new one for each sample, since the weights have changed
            name=str(self.folder.path),
            spec=trainer.recipe.model,
            models=trainer.models,
            tokenizer=self.tokenizer,
            objective=trainer.objective,
            contents=prepared.contents,
            context=prepared.context,
            packing=prepared.packing,
        )
        prompts, half = self._prompts(), predictor.max_len // 2
        encode, decode = self.tokenizer.encode, self.tokenizer.decode
        ends = [decode(encode(prompt)[-half:]) if len(prompt) > half else prompt for prompt in prompts]
        seed = derive(trainer.recipe.seed, step, Purpose.SAMPLE)
        config = GenerationConfig(max_new=trainer.recipe.sample.tokens, seed=seed)
        with fork_rng(trainer.world.device), trainer.ema.swapped() if trainer.ema else nullcontext():
            try:
                # Not compiled: each new length would compile another graph for a few tokens.
                with autocast(trainer.precision, trainer.world.device), compiled_code_runs_eagerly():
                    texts = TextGenerator(predictor, steps="eager").generate(ends, config)
            finally:
                trainer.entry.train()
        if prompts and trainer.world.leads:
            pairs = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
            file = self.folder.path / SAMPLES / f"{step_name(step)}.jsonl"
            file.parent.mkdir(exist_ok=True)
            store(file, "".join(f"{json.dumps(pair)}\n" for pair in pairs))

    def _prompts(self) -> list[str]:
        """The prompts of the recipe; if a source is needed and none is named, some of the validation split."""
        recipe, prepared = self.trainer.recipe, self.trainer.prepared
        if any(recipe.sample.prompts) or not (recipe.model.needs_source or prepared.contents.pair):
            return list(recipe.sample.prompts)
        side = prepared.split("valid").sides.get("source") if "valid" in prepared.counts else None
        rows = [] if side is None else [side[row] for row in range(min(EXAMPLES, len(side)))]
        return [self.tokenizer.decode(row.tolist()) for row in rows]


class Evaluating:
    """Measures the validation loss and remembers where it was lowest."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments, on_loss: Callable[[int, float], None]):
        self.trainer, self.folder, self.when, self.on_loss = trainer, folder, when, on_loss

    def __call__(self, step: Step) -> None:
        if not self.when(step):
            return
        terms = validate(self.trainer, self.trainer.recipe.evaluate.batches)
        if terms is None:
            return
        loss = math.fsum(terms.values())
        named = {name: finite(value) for name, value in terms.items()}
        self.folder.metric({"step": step.number, "valid_loss": finite(loss), "valid_terms": named})
        self.trainer.progress.note_validation(loss)
        self.on_loss(step.number, loss)


MEGABYTE = 1_000_000
_LISTED = 4
"""Modules that a message lists at most."""


def check_room(trainer: Trainer, folder: Path) -> None:
    """Raises ResourceError unless the disk has room for all checkpoints that exist at the same time."""
    if not trainer.world.leads:
        return
    tensors = (tensor for file in tensors_of(trainer).values() for tensor in file.values())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    existing = sum(1 for _ in (folder / CHECKPOINTS).glob("step-*"))
    count = max(1, _at_once(trainer) - existing)
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(parent).free
    if count * size > free:
        raise ResourceError(
            f"{folder.absolute()}: not enough room on the disk: {count} checkpoint{'s' * (count > 1)} of "
            f"{size / MEGABYTE:,.1f} MB will be there at once, {free / MEGABYTE:,.1f} MB are free. Free some space, "
            f"use another folder: out=NAME (--out NAME), or keep fewer: checkpoint.keep=1 checkpoint.keep_best=false"
        )


def _at_once(trainer: Trainer) -> int:
    """Checkpoints on the disk while one is written: the kept ones, the best one, and the new one."""
    choice, steps = trainer.recipe.checkpoint, trainer.budget.steps
    if steps is None:
        return choice.keep + choice.keep_best + 1
    saves = -(-steps // choice.every) if choice.every else 1
    for_good = steps // choice.keep_every if choice.keep_every else 0
    return min(saves, choice.keep + choice.keep_best + 1 + for_good)


class Saving:
    """Saves checkpoints of a run and prunes old ones."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments):
        self.trainer, self.folder, self.when = trainer, folder, when

    def __call__(self, step: Step) -> None:
        improved = self.trainer.recipe.checkpoint.keep_best and self.trainer.progress.best_step == step.number
        if improved or self.when(step):
            self.save(complete=self.when.finished())

    def save(self, complete: bool = False) -> None:
        """Flushes the metrics, saves a checkpoint, then prunes: metrics on disk are never behind a checkpoint.
        Raises CheckpointError if weights are not finite."""
        files, world, progress = tensors_of(self.trainer), self.trainer.world, self.trainer.progress
        broken = [name for name, tensor in files["model"].items() if not torch.isfinite(local_shard(tensor)).all()]
        if world.maximum(len(broken)):
            subject = f"{broken[0]} and {len(broken) - 1} more hold" if broken else "tensors of other ranks hold"
            raise CheckpointError(f"not saved: {subject} values that are not finite (NaN or infinity).")
        if complete and has_shards(files):
            # The final weights are stored unsharded, so that any number of processes can load them. The optimiser's
            # state, needed only to resume, stays sharded.
            weights = {name: tensors for name, tensors in files.items() if name != "optimizer"}
            files |= {name: gathered(tensors, world.leads) for name, tensors in weights.items()}
        self.folder.flush()
        state = {"progress": progress.to_dict(), "complete": complete}
        checkpoint.save(self.folder.checkpoints, progress.step, files, state, world)
        if world.leads:
            checkpoint.prune(self.folder.checkpoints, self._kept())

    def _kept(self) -> set[str]:
        """Names of the checkpoints that are not pruned."""
        choice, progress = self.trainer.recipe.checkpoint, self.trainer.progress
        checkpoints = by_step(self.folder.checkpoints)
        names = {path.name for path in list(checkpoints.values())[-choice.keep :]}
        if choice.keep_every:
            names |= {path.name for step, path in checkpoints.items() if step % choice.keep_every == 0}
        if choice.keep_best and progress.best_step is not None:
            names |= {step_name(progress.best_step)}
        return names | {checkpoint.latest(self.folder.checkpoints) or ""}


def tensors_of(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """File name -> the live tensors that an exact resume needs, not copies; sharded ones stay sharded."""
    main = trainer.loss_module.model.state_dict(keep_vars=True)
    stored = {id(tensor) for tensor in main.values()}
    files = {"model": main, "optimizer": trainer.optimizer.state_dict()}
    for name, model in trainer.models.items():
        if name != "model":  # tensors tied to the main model are stored with it
            tensors = model.state_dict(keep_vars=True)
            files[name] = {key: tensor for key, tensor in tensors.items() if id(tensor) not in stored}
    if trainer.ema:
        files["ema"] = trainer.ema.state_dict()
    if trainer.loss_module.carried:
        files["carry"] = trainer.loss_module.carried.state_dict()
    return files


def restore(trainer: Trainer, files: Files, state: Mapping[str, Any]) -> None:
    """Restores a trainer from the tensors and the state of a checkpoint."""
    needed = (*trainer.models, "optimizer", *(("carry",) if trainer.loss_module.carried else ()))
    missing = [name for name in needed if name not in files]
    if missing:
        raise CheckpointError(f"the checkpoint has no {missing[0]}.safetensors.")
    for name, model in trainer.models.items():
        load_weights(model, files[name], partly=name != "model")
    trainer.optimizer.load_state_dict(files["optimizer"])
    if trainer.ema:
        trainer.ema.load_state_dict(files["ema"])
    if trainer.loss_module.carried:
        trainer.loss_module.carried.load_state_dict(files["carry"])
    fits = trainer.progress.micro_batch  # on this device, with this world size
    try:
        trainer.progress = Progress.of(state["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"state.json: `progress` is missing or invalid ({type(error).__name__}).") from None
    known = [size for size in (fits, trainer.progress.micro_batch) if size is not None]
    trainer.progress.micro_batch = min(known, default=None) if trainer.recipe.train.micro_batch == "auto" else fits
    trainer.scale = LossScale(trainer.progress.scale, trainer.progress.calm)


def start_from(trainer: Trainer, source: str | None, log: Callable[[str], None]) -> int:
    """Copies the tensors of a run's best checkpoint, of a Hugging Face folder or of a GGUF file, whose names and shapes
    agree; returns their number."""
    if source is None:
        return 0
    theirs, origin = StartingPoint.open(source).tensors()
    state, tuning = trainer.loss_module.model.state_dict(), trainer.recipe.tune
    names = {name: tuning.pretrained_name(name) if tuning else name for name in state}
    taken = {
        name: theirs[names[name]]
        for name, tensor in state.items()
        if names[name] in theirs and theirs[names[name]].shape == tensor.shape
    }
    if not taken:
        raise SpecError(f"init_from={source}: no tensor of that model has the name and shape of one of this model.")
    with torch.no_grad():
        for name, tensor in taken.items():
            state[name].copy_(shard_like(tensor, state[name]))
    used = {names[name] for name in taken}
    parts = [f"{len(taken)} of {len(state)} tensors start with the weights of {origin}."]
    if new := _summary(name for name in state if name not in taken):
        parts.append(f"New: {new}.")
    if left := _summary(name for name in theirs if name not in used):
        parts.append(f"Left out: {left}.")
    log(f"init_from={source}: {' '.join(parts)}")
    return len(taken)


def _summary(names: Iterable[str]) -> str:
    """Tensors in a few words: the modules that have them, without the numbers of layers."""
    modules = Counter(".".join(key for key in name.split(".")[:-1] if not key.isdigit()) for name in names)
    shown = [f"{module} ({count})" for module, count in modules.items()]
    more = f" and {len(shown) - _LISTED} more modules" if len(shown) > _LISTED else ""
    return ", ".join(shown[:_LISTED]) + more
