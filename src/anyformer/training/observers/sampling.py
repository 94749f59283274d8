"""Texts that the model generates during training: samples/step-000500.jsonl, a line {"prompt", "text"} for each prompt.

Sampling does not change the results of a run: torch's random state is restored, and the model returns to training mode.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from anyformer.disk import SAMPLES, step_name
from anyformer.inference.predictor import Predictor
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.training.distributed.world import divides
from anyformer.training.loop.budget import Step
from anyformer.training.loop.precision import Purpose, autocast, derive
from anyformer.training.loop.trainer import Trainer
from anyformer.training.loop.validation import validate
from anyformer.training.observers.metrics_log import Moments, finite
from anyformer.training.runs.run_folder import RunFolder

EXAMPLES = 4
"""Number of validation texts used as prompts if the model needs a source and the recipe sets no prompts."""


class Sampling:
    """Generates text for the prompts of the recipe, if the model can generate."""

    def __init__(
        self, trainer: Trainer, folder: RunFolder, when: Moments, tell: Callable[[str], None] = lambda text: None
    ):
        self.trainer, self.folder, self.when, self.tell = trainer, folder, when, tell
        recipe = trainer.recipe
        self.able = recipe.model.decodes and any("generate" in part.serves for part in trainer.objective.parts)
        if self.able and divides(trainer.world, recipe.train.parallel):
            self.able = False
            tell("no samples during training: the model is sharded (train.parallel=fsdp). Use ddp to get samples.")
        self.generator: TextGenerator | None = None

    def __call__(self, step: Step) -> None:
        if not self.able or not self.when(step):
            return
        try:
            self._sample(step.number)
        except Exception as error:  # a failed sample must not stop the run
            self.able = False
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            self.folder.event("samples_failed", step=step.number, why=reason)
            self.tell(f"sampling failed and is turned off for this run ({reason}).")

    def _sample(self, step: int) -> None:
        trainer = self.trainer
        generator = self._generator()
        prompts = self._prompts(generator.predictor)
        devices = [trainer.world.device] if trainer.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices), trainer.ema.swapped() if trainer.ema else nullcontext():
            try:
                # Not compiled: each new length would compile another graph for a few tokens.
                with autocast(trainer.precision, trainer.world.device), torch.compiler.set_stance("force_eager"):
                    texts = self._write(generator, prompts, step)
            finally:
                trainer.entry.train()
        if prompts and trainer.world.rank == 0:
            self._store(step, prompts, texts)

    def _generator(self) -> TextGenerator:
        """A new one for each sample, since the weights have changed; the tokenizer is read once."""
        trainer, prepared = self.trainer, self.trainer.prepared
        predictor = Predictor(
            name=str(self.folder.path),
            spec=trainer.recipe.model,
            models=trainer.models,
            tokenizer=self.generator.predictor.tokenizer if self.generator else prepared.tokenizer,
            objective=trainer.objective,
            contents=prepared.contents,
            context=prepared.context,
            packing=prepared.packing,
        )
        self.generator = TextGenerator(predictor, steps="eager")
        return self.generator

    def _write(self, generator: TextGenerator, prompts: Sequence[str], step: int) -> list[str]:
        recipe, tokenizer = self.trainer.recipe, generator.predictor.tokenizer
        most = generator.predictor.max_len // 2
        fitting = [
            tokenizer.decode(tokenizer.encode(prompt)[-most:]) if len(prompt) > most else prompt for prompt in prompts
        ]
        seed = derive(recipe.seed, step, Purpose.SAMPLE)
        return generator.generate(fitting, GenerationConfig(max_new=recipe.sample.tokens, seed=seed))

    def _prompts(self, predictor: Predictor) -> list[str]:
        """The prompts of the recipe; if a source is needed and none is named, some of the validation split."""
        prompts, prepared = self.trainer.recipe.sample.prompts, self.trainer.prepared
        if any(prompts) or not (predictor.spec.needs_source or prepared.contents.pair):
            return list(prompts)
        side = prepared.split("valid").sides.get("source") if "valid" in prepared.counts else None
        if side is None:
            return []
        return [predictor.tokenizer.decode(side[row].tolist()) for row in range(min(EXAMPLES, len(side)))]

    def _store(self, step: int, prompts: Sequence[str], texts: Sequence[str]) -> None:
        folder = self.folder.path / SAMPLES
        folder.mkdir(exist_ok=True)
        pairs = zip(prompts, texts, strict=True)
        lines = [json.dumps({"prompt": prompt, "text": text}) + "\n" for prompt, text in pairs]
        fresh = folder / f".{step_name(step)}.jsonl"
        fresh.write_text("".join(lines), encoding="utf-8")
        os.replace(fresh, folder / f"{step_name(step)}.jsonl")


class Evaluating:
    """Measures the validation loss and remembers where it was lowest."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        when: Moments,
        on_loss: Callable[[int, float], None] = lambda step, loss: None,
    ):
        self.trainer, self.folder, self.when, self.on_loss = trainer, folder, when, on_loss

    def __call__(self, step: Step) -> None:
        if not self.when(step):
            return
        terms = validate(self.trainer, self.trainer.recipe.evaluate.batches)
        if terms is None:
            return
        loss, progress = math.fsum(terms.values()), self.trainer.progress
        named = {name: finite(value) for name, value in terms.items()}
        self.folder.metric({"step": step.number, "valid_loss": finite(loss), "valid_terms": named})
        if math.isfinite(loss) and (progress.best is None or loss < progress.best):
            progress.best, progress.best_step = loss, step.number
        self.on_loss(step.number, loss)
