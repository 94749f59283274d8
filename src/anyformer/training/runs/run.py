"""A run is a folder that anyone can read: docs/formats.md says what is in it."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anyformer.core import Model, decode
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents
from anyformer.data.record import Record
from anyformer.data.sources.named_source import NOTHING, source_of
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import CheckpointError, DataError
from anyformer.evaluation.evaluating import Job, evaluate, held_out
from anyformer.evaluation.metrics.score import Scores
from anyformer.inference.classifying import Label, classify, parse
from anyformer.inference.embedding import embed
from anyformer.inference.filling import Filled, fill
from anyformer.inference.predictor import Predictor
from anyformer.inference.text_generator import GenerationConfig, write
from anyformer.objectives.heads import speaker
from anyformer.training.loop.loss_module import build_models
from anyformer.training.recipes.recipe import Recipe, load_recipe
from anyformer.training.runs import checkpoint
from anyformer.training.runs.snapshots import load_weights

RECIPE, SOURCES, ENVIRONMENT = "recipe.toml", "sources.json", "environment.json"
METRICS, EVENTS, TOKENIZER, CHECKPOINTS, SAMPLES = (
    "metrics.jsonl",
    "events.log",
    "tokenizer.json",
    "checkpoints",
    "samples",
)


@dataclass(frozen=True)
class Run:
    """A run folder, opened to be read."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            raise CheckpointError(f"{folder}: is no run folder, it has no {RECIPE}.")
        return cls(folder)

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def recipe(self) -> Recipe:
        """What was done, with nothing left open."""
        return load_recipe(self.folder / RECIPE).recipe

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / TOKENIZER)

    def metrics(self) -> Iterator[Mapping[str, Any]]:
        """The lines of metrics.jsonl; one that a crash cut off is left out."""
        file = self.folder / METRICS
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                yield json.loads(line)
            except ValueError:
                return

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        return list(checkpoint.newest(self.folder / CHECKPOINTS))

    @property
    def state(self) -> Mapping[str, Any]:
        """What the newest checkpoint remembers besides tensors."""
        return checkpoint.load_state(self._newest())

    @property
    def complete(self) -> bool:
        """True: the budget was spent, and the last checkpoint is whole."""
        found = self.checkpoints
        return bool(found) and checkpoint.is_whole(found[0]) and bool(self.state.get("complete"))

    def model(self, step: int | None = None, device: str | torch.device = "cpu") -> Model:
        """The model as it was after a step, the newest if none is named; averaged, if the run kept an average."""
        snapshot = checkpoint.load(self._checkpoint(step), only=("model", "ema"))
        model = self.recipe.model.build(device=device, seed=self.recipe.weights_seed)
        return _filled(model, snapshot)

    def trained(self, device: str | torch.device = "auto", step: int | None = None) -> Predictor:
        """The model with all that is needed to ask it something; auto: on a GPU if there is one."""
        recipe, data = self.recipe, self._data_facts()
        assert recipe.objective is not None
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if (size := self.tokenizer.words.size) > (known := speaker(recipe.model).vocab):
            raise CheckpointError(
                f"{self.folder / TOKENIZER}: has {size} tokens, the model {known}: ids outside the vocabulary. "
                f"Is it another run's?"
            )
        models = build_models(recipe, recipe.objective, torch.device(device))
        snapshot = checkpoint.load(self._checkpoint(step), only=(*models, "ema"))
        for name in models.keys() - {"model"}:
            load_weights(models[name], snapshot.tensors[name], partly=True)
        _filled(models["model"], snapshot)
        return Predictor(
            name=str(self.folder),
            spec=recipe.model,
            models={name: model.eval() for name, model in models.items()},
            tokenizer=self.tokenizer,
            objective=recipe.objective,
            contents=Contents.of(data["contents"]),
            context=int(data["context"]),
            packing=decode(PackingSpec, data["packing"]),
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector for each text, [n d], pooled as the model was trained to."""
        return embed(self._trained, texts)[0]

    def generate(self, prompts: Sequence[str], manner: GenerationConfig | None = None) -> list[str]:
        """The text that the model writes for each prompt: a continuation, a translation or a summary."""
        return write(self._trained, prompts, manner)

    def fill(self, texts: Sequence[str], top: int = 5) -> list[Filled]:
        """Each text with its gaps, which are written <mask>, filled."""
        return list(fill(self._trained, texts, top))

    def classify(self, texts: Sequence[str], top: int | None = None) -> list[Label]:
        """The class of each text with its probabilities; a tab stands between the two texts of a pair."""
        return classify(self._trained, [parse(text, self._trained) for text in texts], top)

    def evaluate(
        self, data: str | None = None, metrics: Collection[str] = (), limit: int | None = None, split: str | None = None
    ) -> Scores:
        """The scores of a path to data, or of the run's own validation split."""
        records = list(islice(self.records(data, split), limit))
        return evaluate(Job(trained=self._trained, records=records), metrics).scores

    def records(
        self, data: str | None = None, split: str | None = None, told: Mapping[str, Any] = NOTHING
    ) -> Iterator[Record]:
        """Of a path to data, all or those of a split; or of a split of the run's own data, validation if none is named.

        `told`: options of the source, such as the fields of text and label.
        """
        if data is not None:
            found = source_of(data, told).records()
            return found if split is None else (record for record in found if record.split == split)
        own, facts = self.recipe.data, self._data_facts()
        assert own is not None
        split = split or "valid"
        if not facts["splits"].get(split, {}).get("samples"):
            raise DataError(f"{self.folder}: its data have no split {split!r}. Name some: anyformer evaluate RUN DATA")
        if own.fingerprint() != self.environment["data_fingerprint"]:
            raise DataError(
                f"{self.folder}: its data have changed since, so what was held out may be what it learned from. "
                f"Name other data: anyformer evaluate RUN DATA"
            )
        return held_out(own, split)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """What the numbers of the run depend on besides its recipe."""
        try:
            found: Mapping[str, Any] = json.loads((self.folder / ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.folder / ENVIRONMENT}: cannot be read ({type(error).__name__}).") from None
        return found

    @cached_property
    def _trained(self) -> Predictor:
        return self.trained()

    def _data_facts(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self.environment["data"]
            found["contents"], found["context"], found["packing"], found["splits"]
        except (KeyError, TypeError):
            raise CheckpointError(f"{self.folder / ENVIRONMENT}: does not say what the data were.") from None
        return found

    def _checkpoint(self, step: int | None) -> Path:
        return self._newest() if step is None else self.folder / CHECKPOINTS / checkpoint.folder_name(step)

    def _newest(self) -> Path:
        found = self.checkpoints
        if not found:
            raise CheckpointError(f"{self.folder}: there is no checkpoint yet.")
        return found[0]


def _filled(model: Model, snapshot: checkpoint.Snapshot) -> Model:
    """The model with the weights of a snapshot, averaged where there is an average."""
    load_weights(model, snapshot.tensors["model"])
    if "ema" in snapshot.tensors:
        own, prefix = dict(model.named_parameters()), "model."
        averages = {name.removeprefix(prefix): it for name, it in snapshot.tensors["ema"].items()}
        load_weights(model, {name: averages[name] for name in own if name in averages}, partly=True)
    return model.eval()
