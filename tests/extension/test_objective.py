"""An objective from outside the package, in one file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run, train

CODE = '''
"""Language modelling that weighs long documents less: each word counts 1 / sqrt(position + 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Loss, Objective


@dataclass(frozen=True, kw_only=True)
class EarlyWords(Objective, kind="early_words"):
    """Each word from the words before it; early words count more."""

    serves = "generate"
    scores = ("loss", "perplexity")

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return NextToken().adapt(model)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        shifted = NextToken().prepare(batch, words, rng)
        places = torch.arange(1, shifted.weight.shape[1] + 1)
        return replace(shifted, weight=shifted.weight * places.rsqrt())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return NextToken().counts(batch)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        return NextToken().loss(models, batch, rng)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("objective"), "outside_objective", CODE) as folder:
        train("objective.kind=early_words")
        yield folder


def test_an_objective_is_shown(folder: Path) -> None:
    assert "early words count more" in run("parts", "early_words", "--json")
    assert "early_words" in run("config", "show", "run/recipe.toml")


def test_a_run_of_an_objective_gives_vectors(folder: Path) -> None:
    assert "vector" in run("embed", "run", "the cat", "--json")


@pytest.mark.xfail(reason="only the terms of its loss are scored: which scores fit is a table of our classes")
def test_an_objective_names_its_scores(folder: Path) -> None:
    assert {"loss", "perplexity"} <= set(json.loads(run("evaluate", "run", "--json")))


@pytest.mark.xfail(reason="which verb an objective serves is a table of our classes")
def test_a_run_of_an_objective_answers(folder: Path) -> None:
    assert "finish" in run("generate", "run", "the cat", "--max-new", "3", "--json")


def test_a_run_of_an_objective_is_viewed(folder: Path) -> None:
    run("view", "run", "the cat sees", "--out", "attention.svg")
    assert (folder / "attention.svg").exists()
