"""A study of models given as Python values."""

from pathlib import Path

import pytest
from tests.study.small import TINY
from tests.training.small import text

from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.gru import GRU
from anyformer.study import Listener, compare
from anyformer.study.study import read_study
from anyformer.study.study_folder import STUDY
from anyformer.training.recipes.python_values import layers_of

MODEL = Decoder(dim=16, stack=Stack(blocks={"memory": Block(branches=(Branch(part=GRU()),))}, depth=1))


def test_models_are_compared_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [key for key in TINY if not key.startswith("model.")]
    arms = {"mine": MODEL, "base": MODEL.with_("dim", 20)}
    folders = {"out": tmp_path / "study", "cache": tmp_path / "cache"}
    results = compare(arms, *keys, data=text(tmp_path), match="none", seeds=1, **folders)
    printed = capsys.readouterr()
    assert "[  2/2] base seed 0: test loss " in printed.err and not printed.out
    compare(tmp_path / "study", cache=tmp_path / "cache", listener=Listener())
    assert not capsys.readouterr().err
    assert [arm.name for arm in results.arms] == ["mine", "base"]
    assert repr(results) == f"Results({str(tmp_path / 'study')!r})"
    assert results.verdict and results.table.splitlines()[1].startswith("mine")
    again = read_study(tmp_path / "study" / STUDY)
    assert again.arms["mine"].data["model"]["stack"]["blocks"].keys() == {"memory"}


def test_an_arm_given_as_a_value_replaces_the_model_of_the_base(tmp_path: Path) -> None:
    study = read_study("small", (), layers_of(text(tmp_path), None, {}), {"base": "small", "mine": MODEL})
    assert study.arms["mine"].data["model"]["stack"]["blocks"].keys() == {"memory"}
    assert study.arms["mine"].data["data"] == study.arms["base"].data["data"]


def test_an_arm_given_as_a_value_may_be_changed_further(tmp_path: Path) -> None:
    """These changes were lost without a word."""
    words = ["arms.mine.optimizer.lr=1e-5", "arms.base.optimizer.lr=1e-6"]
    study = read_study("small", words, layers_of(text(tmp_path), None, {}), {"base": "small", "mine": MODEL})
    assert [arm.data["optimizer"]["lr"] for arm in study.arms.values()] == [1e-6, 1e-5]
    assert study.arms["mine"].data["model"]["stack"]["blocks"].keys() == {"memory"}
