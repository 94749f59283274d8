"""What the model says on the way: samples/step-000500.jsonl, a line {"prompt", "text"} for each prompt.

It changes no number of the run: nothing is drawn from torch's own streams, and the model goes back to training.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from anyformer.core import Model
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import step_name
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.inference.text_generator import TEMPERATURE
from anyformer.objectives.heads import speaker
from anyformer.objectives.words import WORDS
from anyformer.training.distributed.world import divides
from anyformer.training.loop.precision import autocast
from anyformer.training.loop.randomness import Purpose, derive
from anyformer.training.loop.step import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.moments import Moments
from anyformer.training.runs.file_names import SAMPLES
from anyformer.training.runs.run_folder import RunFolder

EXAMPLES = 4
"""Texts of the validation split that are asked where a model needs a source and nobody gives one."""


class Sampling:
    """Asks the model to go on from prompts, to translate or to answer them; an encoder is asked nothing."""

    def __init__(
        self, trainer: Trainer, folder: RunFolder, when: Moments, tell: Callable[[str], None] = lambda text: None
    ):
        self.trainer, self.folder, self.when, self.tell = trainer, folder, when, tell
        self.able = trainer.recipe.model.decodes
        if self.able and divides(trainer.world, trainer.recipe.train.parallel):
            self.able = False
            tell("no samples on the way: the model is divided among processes, and none could speak alone.")
        self.tokenizer: Tokenizer | None = None

    def __call__(self, step: Step) -> None:
        if not self.able or not self.when(step) or (step.terms and WORDS not in step.terms):
            return
        try:
            self._sample(step.number)
        except Exception as error:  # samples are a courtesy: no run ends for want of them
            self.able = False
            why = f"{type(error).__name__}: {error}".split("\n")[0]
            self.folder.event("samples_failed", step=step.number, why=why)
            self.tell(f"there will be no samples of this run ({why}).")

    def _sample(self, step: int) -> None:
        trainer = self.trainer
        self.tokenizer = self.tokenizer or trainer.prepared.tokenizer
        prompts, model = self._prompts(), trainer.loss_module.model
        seeds = [derive(trainer.recipe.seed, step, Purpose.SAMPLE, row) for row in range(len(prompts))]
        devices = [trainer.world.device] if trainer.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices), trainer.ema.swapped() if trainer.ema else nullcontext():
            try:
                # no compiler: a few words are not worth a graph for every length
                with autocast(trainer.precision, trainer.world.device), torch.compiler.set_stance("force_eager"):
                    texts = self._write(model, prompts, seeds)
            finally:
                trainer.entry.train()
        if prompts and trainer.world.rank == 0:
            self._store(step, prompts, texts)

    def _write(self, model: Model, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        assert self.tokenizer is not None
        recipe, pairs = self.trainer.recipe, self.trainer.prepared.contents.pair
        longest, words = speaker(recipe.model).max_len, self.tokenizer.words
        engine = Engine(model, max_len=longest, bos=words.bos, steps="eager")
        requests = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            ids = self.tokenizer.encode(prompt)[-(longest // 2) :]
            if recipe.model.needs_source:
                requests.append(Request(source=[*ids, words.sep], seed=seed))
            else:  # in one row, a source ends with its separator and the target begins there
                requests.append(Request(prompt=[*ids, words.sep] if pairs else [words.bos, *ids], seed=seed))
        sampler = Greedy() if pairs else Sample(temperature=TEMPERATURE)
        written = engine.generate(requests, sampler, max_new=recipe.sample.tokens, stop=(words.eos,))
        return [self.tokenizer.decode(row.tokens) for row in written]

    def _prompts(self) -> list[str]:
        """Those of the recipe; where a source is needed and none is given, some of the validation split."""
        given, prepared = self.trainer.recipe.sample.prompts, self.trainer.prepared
        if any(given) or not (self.trainer.recipe.model.needs_source or prepared.contents.pair):
            return list(given)
        side = prepared.split("valid").sides.get("source") if "valid" in prepared.counts else None
        if side is None:
            return []
        assert self.tokenizer is not None
        return [self.tokenizer.decode(side[row].tolist()) for row in range(min(EXAMPLES, len(side)))]

    def _store(self, step: int, prompts: Sequence[str], texts: Sequence[str]) -> None:
        folder = self.folder.path / SAMPLES
        folder.mkdir(exist_ok=True)
        said = zip(prompts, texts, strict=True)
        lines = [json.dumps({"prompt": prompt, "text": text}) + "\n" for prompt, text in said]
        fresh = folder / f".{step_name(step)}.jsonl"
        fresh.write_text("".join(lines), encoding="utf-8")
        os.replace(fresh, folder / f"{step_name(step)}.jsonl")
