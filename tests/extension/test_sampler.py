"""A sampler from outside the package, in one file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run, train

from anyformer.cli.main import main

CODE = '''
"""The least likely word: argmin of the scores."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.generation.samplers.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class LeastLikely(Sampler, kind="least_likely"):
    """Takes the least likely word."""

    rank: int = 1
    """1: the least likely, 2: the one before."""

    def pick(self, logits: Tensor, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
        return logits.argsort(-1)[:, self.rank - 1]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("sampler"), "outside_sampler", CODE) as folder:
        train()
        yield folder


def test_a_sampler_is_shown(folder: Path) -> None:
    assert "rank" in run("parts", "least_likely")


def test_a_sampler_writes(folder: Path) -> None:
    words = ("generate", "run", "the cat", "--max-new", "3", "--json")
    least, second = (run(*words, "sampler.kind=least_likely", f"sampler.rank={rank}") for rank in (1, 2))
    assert len({run(*words, "sampler.kind=greedy"), least, second}) == 3


def test_a_sampler_is_taken_by_evaluate(folder: Path) -> None:
    assert "loss" in run("evaluate", "run", "sampler.kind=least_likely", "--json")


def test_a_filter_beside_a_sampler_without_filters_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "run", "the cat", "sampler.kind=least_likely", "sampler.top_p=0.5"]) == 2
    assert "sampler.top_p: the sampler 'least_likely' takes no filters" in " ".join(capsys.readouterr().err.split())


def test_a_field_without_its_sampler_is_refused_with_the_kind_to_write(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "run", "the cat", "sampler.rank=2"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "sampler.rank: Sample has no such key." in error and "temperature, top_k, top_p" in error
    assert "It is a key of least_likely: write sampler.kind=least_likely as well." in error


def test_the_kind_of_a_sampler_may_stand_behind_its_fields(folder: Path) -> None:
    words = ("generate", "run", "the cat", "--max-new", "3", "--json")
    kind, rank = "sampler.kind=least_likely", "sampler.rank=2"
    assert run(*words, rank, kind) == run(*words, kind, rank) != run(*words, kind)
