"""`train`, and the `Run` that it returns: metrics, checkpoints and model of a run folder (docs/formats.md)."""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from anyformer.child_process import refuse_second_run
from anyformer.core import Model, ModelSpec, decode
from anyformer.core.fields import shown
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.chat.template import DEFAULT_TEMPLATE, messages_of
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.named_source import NOTHING, relocated, source_with
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import (
    CALIBRATION,
    CHAT_TEMPLATE,
    CHECKPOINTS,
    ENVIRONMENT,
    EVALUATIONS,
    METRICS,
    TOKENIZER,
    OpenedFolder,
    step_name,
    step_of,
    write,
    write_atomically,
)
from anyformer.errors import CheckpointError, DataError, Problem, SpecError, check_strings
from anyformer.evaluation.evaluating import evaluate, held_out
from anyformer.evaluation.metrics.metric import Job
from anyformer.evaluation.metrics.score import ScoreTable
from anyformer.evaluation.training_overlap import not_compared, training_overlap
from anyformer.evaluation.yardsticks.yardstick_comparison import Yardsticks
from anyformer.inference.assistant import Assistant
from anyformer.inference.calibration import Calibration, calibrated, stored_temperature
from anyformer.inference.classifying import Label, classify, parse
from anyformer.inference.embedding import embed
from anyformer.inference.filling import Filled, fill
from anyformer.inference.searching import Hit, Index, IndexedText
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.objective import Predictor
from anyformer.optim import average
from anyformer.training.loop.loss_module import fresh_models
from anyformer.training.printed_progress import PrintedProgress
from anyformer.training.recipes import python_values
from anyformer.training.recipes.python_values import DataTarget, Sections, Target
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.runs import checkpoint
from anyformer.training.runs.session import TrainRequest, Watcher, train_folder

Choice: TypeAlias = Literal["best", "last"] | int
"""A checkpoint of a run: by validation loss, the last one, or that of a step."""
Readable: TypeAlias = str | Path | SourceSpec | None
"""A path to records, a source of them, or None for the run's own."""


class Run(OpenedFolder):
    """A run folder, opened for reading."""

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """The run in a folder; raises CheckpointError if the folder holds none."""
        checkpoint.refuse_other_folder(Path(folder))
        return cls(folder)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @cached_property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return checkpoint.run_recipe(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        checkpoint.refuse_other_folder(self.folder)
        return Tokenizer.load(self.folder / TOKENIZER)

    def metrics(self) -> Iterator[Mapping[str, Any]]:
        """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
        file = self.folder / METRICS
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                return

    @property
    def checkpoints(self) -> list[Path]:
        """The paths of all checkpoints, newest first."""
        return checkpoint.newest(self.folder / CHECKPOINTS)

    @property
    def state(self) -> Mapping[str, Any]:
        """The JSON state of the newest checkpoint."""
        return checkpoint.load_state(self.newest)

    @property
    def best_step(self) -> int | None:
        """The step with the lowest validation loss so far; None without validation."""
        step: int | None = self.state.get("progress", {}).get("best_step")
        return step

    @property
    def complete(self) -> bool:
        """True if the run has ended, its last checkpoint is intact, and it was not extended since."""
        return checkpoint.is_complete(self.folder)

    def model(self, step: Choice = "best", device: str | torch.device = "cpu") -> Model:
        """The model of a checkpoint: the one with the lowest validation loss, the "last" one, or that of a step; with
        averaged weights if the run has an average."""
        return checkpoint.trained_model(self.folder, self.recipe, device, self.checkpoint(step))

    def trained(self, device: str | torch.device = "auto", step: Choice = "best") -> Predictor:
        """The model with its tokenizer and objective, ready for inference; auto: on a GPU if there is one."""
        recipe, data = self.recipe, self._data_facts()
        assert recipe.objective is not None
        device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if (size := self.tokenizer.words.size) > (known := recipe.model.output_stack.vocabulary):
            text = f"has {size} tokens, the model {known}: ids outside the vocabulary. Is it another run's?"
            raise CheckpointError(f"{self.folder / TOKENIZER}: {text}")
        path = self.checkpoint(step)
        models = fresh_models(recipe, recipe.objective, torch.device(device))
        models = checkpoint.filled(models, checkpoint.read(path, only=(*models, "ema")), path)
        return Predictor(
            name=str(self.folder),
            spec=recipe.model,
            models=models,
            tokenizer=self.tokenizer,
            objective=recipe.objective,
            contents=Contents.of(data["contents"]),
            context=int(data["context"]),
            packing=decode(PackingSpec, data["packing"]),
            longest_target=data.get("longest_target"),
            temperature=stored_temperature(self.folder / CALIBRATION, step_of(path.name)),
        )

    def averaged(self, last: int, device: str | torch.device = "auto") -> Predictor:
        """The model with the mean of the weights of the last checkpoints, ready for inference: of the last 5, say, if
        the run keeps so many (checkpoint.keep)."""
        paths = self.checkpoints[:last]
        if len(paths) < last:
            text = f"has {len(paths)} of the {last} checkpoints to average. Set checkpoint.keep={last}."
            raise CheckpointError(f"{self.folder}: {text}")
        predictor = self.trained(device, "last")
        for path in paths:
            checkpoint.verify(path)
        weights = average(checkpoint.read(path, only=("model",))["model"] for path in paths)
        checkpoint.load_weights(predictor.model, weights)
        return predictor

    def calibrate(self) -> Calibration | None:
        """Finds the temperature that calibrates the probabilities of a classifier on the validation split, with the
        best checkpoint, and stores it; None for other models, or if there are too few texts."""
        assert self.recipe.objective is not None
        classifies = any("classes" in part.metrics for part in self.recipe.objective.parts)
        if not classifies or not self._data_facts()["splits"].get("valid", {}).get("samples"):
            return None
        calibration = calibrated(replace(self.trained(self.recipe.train.device), temperature=1.0), self.records())
        if calibration is not None:
            facts = {"step": step_of(self.checkpoint("best").name), **calibration._asdict()}
            write(self.folder / CALIBRATION, json.dumps(facts))
        return calibration

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector for each text, [n d], pooled as the model was trained to."""
        check_strings("texts", texts)
        return embed(self._trained, texts)[0]

    def search(self, queries: Sequence[str], documents: Sequence[str], top: int = 10) -> list[list[Hit]]:
        """The documents whose vectors are nearest to that of each query, nearest first."""
        check_strings("queries", queries)
        check_strings("documents", documents)
        index = Index.of([IndexedText(text, str(place)) for place, text in enumerate(documents)], self.embed(documents))
        return index.search(self.embed(queries), top)

    def generate(self, prompts: Sequence[str], config: GenerationConfig | None = None) -> list[str]:
        """The text that the model generates for each prompt: a continuation, a translation or a summary."""
        check_strings("prompts", prompts)
        return self._generator.generate(prompts, config)

    def chat(self, messages: Sequence[Mapping[str, str]], config: GenerationConfig | None = None) -> str:
        """The assistant's answer to the messages of a conversation, each with a role and a content, laid out by the
        chat template of the run."""
        return "".join(self.assistant(self._generator).stream(messages_of(list(messages), "messages"), config))

    def assistant(self, generator: TextGenerator) -> Assistant:
        """A generator that answers by the chat template of the run, or by a plain one if it has none."""
        file = self.folder / CHAT_TEMPLATE
        return Assistant(generator, file.read_text(encoding="utf-8") if file.is_file() else DEFAULT_TEMPLATE)

    def fill(self, texts: Sequence[str], top: int = 5) -> list[Filled]:
        """Each text with its <mask> tokens filled in."""
        check_strings("texts", texts)
        return list(fill(self._filler, texts, top))

    def classify(self, texts: Sequence[str], top: int | None = None) -> list[Label]:
        """The class of each text with its probabilities; a tab stands between the two texts of a pair."""
        check_strings("texts", texts)
        return classify(self._trained, [parse(text, self._trained) for text in texts], top)

    def evaluate(
        self, data: Readable = None, metrics: Collection[str] = (), limit: int | None = None, split: str | None = None
    ) -> ScoreTable:
        """The scores of a path to data or of a source, with a warning if the run was trained on texts of them; or of
        the run's own validation split."""
        check_strings("metrics", metrics)
        records = list(islice(self.records(data, split), limit))
        if data is not None and (overlap := self.training_overlap(records)):
            warnings.warn(overlap, stacklevel=2)
        return ScoreTable(evaluate(Job(predictor=self._trained, records=records), metrics).scores)

    def store_evaluation(self, split: str, facts: Mapping[str, Any]) -> None:
        """Keeps the scores of a split in evaluations/SPLIT.json, for the report of the run."""
        file = self.folder / EVALUATIONS / f"{split}.json"
        with suppress(OSError):  # a folder that cannot be written to has no scores in its report
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, json.dumps(facts, indent=1))

    def yardsticks(self, cache: Path | None = None) -> Yardsticks:
        """Simple methods for the same task, fitted to the training records of this run; `cache` keeps their scores."""
        assert self.recipe.objective is not None
        if self.recipe.data is None:
            raise DataError(f"{self.folder}: was imported, so there are no training records to fit them to.")
        train, fingerprint = partial(self.records, split="train"), str(self.environment["data_fingerprint"])
        return Yardsticks(self.recipe.objective, train, fingerprint, cache)

    def records(
        self, data: Readable = None, split: str | None = None, options: Mapping[str, Any] = NOTHING
    ) -> Iterator[Record]:
        """The records of a path to data or of a source, all or those of a split; without either, of a split of the
        run's own data (default: validation). `options`: options of the source, such as the fields of text and label."""
        if data is not None:
            python_values.check_data(data)
            source = source_with(data, options)
            if source.chat_template is not None and (self.folder / CHAT_TEMPLATE).is_file():
                source = source.with_("template", (self.folder / CHAT_TEMPLATE).read_text(encoding="utf-8"))
            records = source.records()
            return records if split is None else (record for record in records if record.split == split)
        facts = self._data_facts()
        split = split or "valid"
        if self.recipe.data is None or not facts["splits"].get(split, {}).get("samples"):
            there = ", ".join(name for name, counts in facts["splits"].items() if counts.get("samples"))
            has = f" They have {there}." if there else ""
            advice = f"{has} Or name other data: anyformer evaluate RUN DATA"
            raise DataError(f"{self.folder}: its data have no split {split!r}.{advice}")
        if (data_spec := self._unchanged_data(self.recipe.data)) is None:
            raise DataError(
                f"{self.folder}: its data have changed since, so held-out records may have been used in training. "
                f"Name other data: anyformer evaluate RUN DATA"
            )
        return held_out(data_spec, split)

    def training_overlap(self, records: Sequence[Record]) -> str | None:
        """A warning if texts of these records, or long parts of them, were in the training data of this run; also if
        these data can no longer be read, or are so many that it would take long. None for a run that was imported,
        without data."""
        if self.recipe.data is None:
            return None
        name, tokens = str(self.folder), self._data_facts()["splits"].get("train", {}).get("tokens", 0)
        try:
            data = self._unchanged_data(self.recipe.data)
        except DataError as error:
            return not_compared(name, str(error))
        return training_overlap(data, tokens, records, name) if data else not_compared(name, "they have changed since")

    def _unchanged_data(self, data: DataSpec) -> DataSpec | None:
        """The data of this run where they are now; None if they have changed."""
        data = relocated(data, self.environment.get("began_in"))
        return data if data.fingerprint() == self.environment["data_fingerprint"] else None

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions, device and data fingerprint of the run, from environment.json."""
        checkpoint.refuse_other_folder(self.folder)
        return checkpoint.read_facts(self.folder / ENVIRONMENT)

    @cached_property
    def _trained(self) -> Predictor:
        return self.trained()

    @cached_property
    def _generator(self) -> TextGenerator:
        return TextGenerator(self._trained)

    @cached_property
    def _filler(self) -> TextGenerator:
        return TextGenerator(self._trained, "fill")

    def _data_facts(self) -> Mapping[str, Any]:
        try:
            facts: Mapping[str, Any] = self.environment["data"]
            facts["contents"], facts["context"], facts["packing"], facts["splits"]
        except (KeyError, TypeError):
            raise CheckpointError(f"{self.folder / ENVIRONMENT}: `data` is missing or incomplete.") from None
        return facts

    def checkpoint(self, step: Choice = "best") -> Path:
        """The folder of a checkpoint, checked against its manifest: the one with the lowest validation loss (the last
        one without validation), the "last" one, or that of a step."""
        if step == "best":
            return checkpoint.best_checkpoint(self.folder)
        if step == "last":
            return self.newest
        if not isinstance(step, int):
            raise CheckpointError(f"{self.folder}: {step!r} is no checkpoint. Use 'best', 'last' or a step.")
        path = self.folder / CHECKPOINTS / step_name(step)
        if not path.is_dir():
            steps = ", ".join(str(step_of(folder.name)) for folder in self.checkpoints)
            raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}. There are: {steps}.")
        checkpoint.verify(path)
        return path

    def describe(self, step: Choice = "best") -> str:
        """A checkpoint in words: "step 1,500 of 5,000, best validation loss"."""
        path, last = self.checkpoint(step), self.newest
        chosen, taken = step_of(path.name), step_of(last.name)
        why = ", best validation loss" if chosen == self.best_step else ", last" if path == last else ""
        return f"step {chosen:,} of {taken:,}{why}"

    @property
    def newest(self) -> Path:
        """The newest checkpoint that is whole, with a warning if newer ones are damaged."""
        return checkpoint.newest_checkpoint(self.folder)


def opened(run: Run | str | Path) -> Run:
    """The run, opened if it is named by its folder."""
    return run if isinstance(run, Run) else Run.open(run)


def train(
    target: Target | Run,
    *overrides: str,
    data: DataTarget | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    init_from: Run | str | Path | None = None,
    watcher: Watcher | None = None,
    cache: str | Path | None = None,
    **sections: Unpack[Sections],
) -> Run:
    """Trains a model: `train("notes.txt")`, `train(model, data="notes.txt", steps=500)`, `train("recipe.toml")`.

    target: a path to data, a source of data, a preset's name, a recipe file, a model, a recipe, or a run (or its
        folder) with `resume`.
    overrides: dotted keys as on the command line, "optimizer.lr=3e-4"; they are laid on top of everything else.
    data: a path, a source or a data section, where the target is a model, a preset or a recipe; text that comes with
        Python if neither names any.
    steps: short for train.steps.
    out: the run folder; runs/NAME if not given.
    resume: continue an interrupted run exactly where it was.
    init_from: a run, a Hugging Face folder or a GGUF file whose weights (where names and shapes agree) and tokenizer to
        start with.
    watcher: notified of steps, evaluations and messages; the default prints them to standard error, Watcher() prints
        nothing. cache: folder of prepared data.
    sections: other sections of the recipe as values, `optimizer=Muon(lr=2e-3)`; `model` may be a preset's name.

    Under torchrun all processes share the work; rank 0 writes the folder and notifies the watcher.
    """
    refuse_second_run("train")
    watcher = PrintedProgress() if watcher is None else watcher

    def finish(folder: Path) -> None:
        try:
            calibration = Run(folder).calibrate()
        except DataError as error:  # the model is trained: it only stays uncalibrated
            watcher.log(f"not calibrated: {error}")
            return
        if calibration is not None:
            watcher.log(calibration.sentence)

    target = target.folder if isinstance(target, Run) else target
    python_values.check_target(target)
    python_values.check_paths(out=out, cache=cache)
    if not isinstance(watcher, Watcher):
        raise SpecError(problems=[Problem("watcher", f"expected a Watcher, got {shown(watcher)}. Write Watcher().")])
    if isinstance(target, ModelSpec) and "model" in sections:
        raise SpecError("train: the target is a model, and model= names another one. Keep one.")
    source = init_from.folder if isinstance(init_from, Run) else init_from
    overrides, other_sections = python_values.with_preset(overrides, sections)
    values = python_values.layers_of(data, steps, other_sections, None if source is None else str(source))
    return Run(train_folder(TrainRequest(target, overrides, values, out, cache), resume, watcher, finish))
