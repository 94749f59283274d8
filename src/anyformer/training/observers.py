"""Observers, called after every step: metrics, sinks, bad batches, the validation loss and sampled texts.

None of them changes the results of a run: random states are restored, and the model returns to training mode.
"""

import importlib
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

import torch

from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import METRICS, SAMPLES, step_name
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.objective import Predictor
from anyformer.ops.devices import compiled_code_runs_eagerly, fork_rng
from anyformer.training.distributed import divides, forward_only
from anyformer.training.loop.budget import Step
from anyformer.training.loop.feed import Feed, Loader, PreparedBatch, Purpose, derive, generator
from anyformer.training.loop.loss_module import autocast
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.run_folder import RunFolder


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


@dataclass(frozen=True)
class Moments:
    """True for every n-th step and for the last one."""

    every: int
    finished: Callable[[], bool]
    """Whether the step that was just taken is the last one."""

    def __call__(self, step: Step) -> bool:
        return self.finished() or bool(self.every and step.number % self.every == 0)


class Sink(Protocol):
    """A destination of metrics."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a step: loss, lr, valid_loss, ..."""

    def close(self) -> None:
        """Called once after the last step."""


class TensorBoard:
    """Event files for TensorBoard, in a folder of the run. Needs the extra `track`."""

    def __init__(self, run: Path, start: int):
        module = importlib.import_module("torch.utils.tensorboard")
        # After a resume, events of later steps that the interrupted run wrote are purged.
        self._writer: Any = module.SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


SINKS: Mapping[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard}
"""Name in `log.sinks` -> constructor of the sink from (run folder, number of steps done)."""
TIMES = ("wall_s", "tokens_per_s", "peak_bytes")
"""Keys whose values differ between two otherwise identical runs."""


class Metrics:
    """Writes steps to metrics.jsonl."""

    def __init__(self, folder: RunFolder, when: Moments):
        self.folder, self.when = folder, when

    def __call__(self, step: Step) -> None:
        if self.when(step) or step.status != "applied":
            self.folder.metric(line(step))


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or not a number, which JSON cannot write."""
    return value if math.isfinite(value) else None


def line(step: Step) -> dict[str, object]:
    """A step as a line of metrics.jsonl."""
    return {
        "step": step.number,
        "epoch": step.epoch,
        "tokens": step.tokens,
        "loss": finite(step.loss),
        "terms": {name: finite(value) for name, value in step.terms.items()},
        "lr": step.lr,
        "gradient_norm": finite(step.gradient_norm),
        "status": step.status,
        "wall_s": round(step.wall_s, 3),
        "tokens_per_s": round(step.tokens_per_s, 1),
        "peak_bytes": step.peak_bytes,
    }


class Sinks:
    """Forwards new metrics to all sinks; must run after the observers that write metrics."""

    def __init__(
        self,
        folder: RunFolder,
        names: Iterable[str],
        when: Moments,
        log: Callable[[str], None],
        start: int = 0,
        known: Mapping[str, Callable[[Path, int], Sink]] = SINKS,
    ):
        self.folder, self.when, self.log = folder, when, log
        self.file = folder.path / METRICS
        self.read = self.file.stat().st_size if self.file.exists() else 0
        self.sinks: dict[str, Sink] = {}
        for name in names:
            try:
                self.sinks[name] = known[name](folder.path, start)
            except Exception as error:
                self._remove(name, error)

    def __call__(self, step: Step) -> None:
        lines = list(self._new_lines()) if self.sinks else []
        for name, sink in list(self.sinks.items()):
            try:
                for number, values in lines:
                    sink.log(number, values)
                if self.when.finished():
                    sink.close()
            except Exception as error:
                self._remove(name, error)

    def _remove(self, name: str, error: Exception) -> None:
        self.sinks.pop(name, None)
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        self.folder.event("sink_failed", sink=name, why=why)
        hint = " Install it: pip install 'anyformer[track]'." if isinstance(error, ModuleNotFoundError) else ""
        self.log(f"log.sinks: {name} failed ({why}) and is turned off; training continues.{hint}")

    def _new_lines(self) -> Iterator[tuple[int, dict[str, float]]]:
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self.read)
                new = file.read()
            self.read += len(new)
            for facts in map(json.loads, new.decode("utf-8").splitlines()):
                yield facts["step"], dict(_numbers(facts))


def _numbers(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a line of metrics; those of a nested table are named `table/name`."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (prefix or name != "step"):
            yield f"{prefix}{name}", float(value)


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
        if self.able and divides(trainer.world, recipe.train.parallel):
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
            fresh = file.with_name(f".{file.name}")
            fresh.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
            os.replace(fresh, file)

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
