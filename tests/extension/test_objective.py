"""An objective and a metric from outside the package, one file each: trained, evaluated, answered and shown."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.evaluation.runs import ONE, file

from anyformer.cli.main import main
from anyformer.evaluation.metrics.metric import Metric
from anyformer.objectives.objective import Objective
from anyformer.training import Run, train
from anyformer.viewing.view import View

OBJECTIVE = '''
"""The last word of each text, from the words before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.next_token import next_words
from anyformer.objectives.objective import Loss, Objective, Verb
from anyformer.objectives.words import require_decoder, text_count, words_loss


@dataclass(frozen=True, kw_only=True)
class LastWord(Objective, kind="last_word"):
    """The last word of each text."""

    serves: ClassVar[tuple[Verb, ...]] = ("generate",)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("likelihood",)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return require_decoder(model, self.kind)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [words.bos, *ids]

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        ready = next_words(batch, words)
        last = (ready.targets == words.eos).roll(-1, dims=1)
        return replace(ready, weight=ready.weight * last)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return text_count(batch)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        return words_loss(models["model"], batch)
'''
METRIC = '''
"""The mean length of the texts, in characters."""

from dataclasses import dataclass
from typing import ClassVar

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import mean


@dataclass(frozen=True, kw_only=True)
class MeanLength(Metric, kind="mean_length"):
    """The mean length of the texts."""

    names: ClassVar[tuple[str, ...]] = ("mean_length",)

    def fits(self, job: Job) -> bool:
        return job.predictor.contents.plain

    def measure(self, job: Job) -> Scores:
        lengths = [len(record.text) for record in job.records]
        return {"mean_length": Score.of(mean(lengths), len(lengths), "texts")}
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with both files imported; their kinds are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in (("outside_last_word", OBJECTIVE), ("outside_mean_length", METRIC)):
        (tmp_path / f"{name}.py").write_text(code)
        importlib.import_module(name)
    yield tmp_path
    Objective.kinds.pop("last_word")
    Metric.kinds.pop("mean_length")
    for name in ("outside_last_word", "outside_mean_length"):
        sys.modules.pop(name)


@pytest.fixture
def trained(outside: Path) -> Run:
    settings = (*ONE, "model.preset=small", "objective.kind=last_word", "data.packing=bucket", "train.steps=30")
    return train(file("texts"), *settings, out=outside / "run", cache=outside / "cache")


def test_an_objective_of_one_file_trains_evaluates_answers_and_is_shown(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [line["loss"] for line in trained.metrics() if "loss" in line]
    assert losses[-1] < losses[0]
    scores = trained.evaluate(limit=8)
    assert {"loss", "perplexity", "mean_length"} == set(scores) and scores["mean_length"].value > 20
    assert any(trained.generate(["the cat runs over the"])[0].startswith(thing) for thing in ("wall", "lake", "tree"))
    assert View.of(trained.folder, "the cat runs").reading.names == ["<bos>", "the", "cat", "runs"]
    assert (trained.folder / "samples").is_dir()
    assert main(["generate", str(trained.folder), "the cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"]
    assert main(["evaluate", str(trained.folder), "--metric", "mean_length", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"mean_length"}
