"""A study of models given as Python values."""

from pathlib import Path

from tests.study.small import TINY
from tests.training.small import text

from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.gru import GRU
from anyformer.study import compare
from anyformer.study.study import read_study
from anyformer.study.study_folder import STUDY
from anyformer.training.recipes.python_values import layers_of

MODEL = Decoder(dim=16, stack=Stack(blocks={"memory": Block(branches=(Branch(part=GRU()),))}, depth=1))


def test_models_are_compared_and_read_back(tmp_path: Path) -> None:
    keys = [key for key in TINY if not key.startswith("model.")]
    arms = {"mine": MODEL, "base": MODEL.with_("dim", 20)}
    folders = {"out": tmp_path / "study", "cache": tmp_path / "cache"}
    results = compare(arms, *keys, data=text(tmp_path), match="none", seeds=1, **folders)
    assert [arm.name for arm in results.arms] == ["mine", "base"]
    assert results.verdict and results.table.splitlines()[1].startswith("mine")
    again = read_study(tmp_path / "study" / STUDY)
    assert again.arms["mine"].data["model"]["stack"]["blocks"].keys() == {"memory"}


def test_an_arm_given_as_a_value_replaces_the_model_of_the_base(tmp_path: Path) -> None:
    study = read_study("small", (), layers_of(text(tmp_path), None, {}), {"base": "small", "mine": MODEL})
    assert study.arms["mine"].data["model"]["stack"]["blocks"].keys() == {"memory"}
    assert study.arms["mine"].data["data"] == study.arms["base"].data["data"]
