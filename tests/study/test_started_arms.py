"""Arms that start from the weights of other runs, such as shrunk ones, with the models of those runs."""

from pathlib import Path

import pytest
import torch
from tests.study.small import TINY
from tests.training.small import text

from anyformer.errors import SpecError
from anyformer.run import Run, train
from anyformer.shrink.shrinking import PruneSettings, prune
from anyformer.study import compare
from anyformer.study.study import read_study
from anyformer.study.study_folder import STUDY

KEYS = [key for key in TINY if not key.startswith(("model.", "study."))]
STUDY_KEYS = ["study.jobs=1", "study.tuning.trials=0", "study.seeds=2", 'study.arms=["whole", "half"]']


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("arms")
    whole = train(text(home), *KEYS, "model.dim=16", "model.stack.depth=1", out=home / "whole", cache=home / "cache")
    prune(whole, PruneSettings(amounts=["heads=0.5", "neurons=0.5"], by="magnitude"), home / "half")
    return home


def arms(home: Path) -> list[str]:
    return [f'arms.{name}.init_from="{home / name}"' for name in ("whole", "half")]


def test_a_shrunk_run_is_an_arm_with_its_model_and_its_weights(home: Path) -> None:
    still = [*KEYS, *STUDY_KEYS, *arms(home), "study.match=none", "train.steps=1", "optimizer.lr=1e-9"]
    results = compare(text(home), *still, out=home / "study", cache=home / "cache")
    for arm in results.arms:
        source, run = Run.open(home / arm.name), Run.open(arm.runs[0].folder)
        assert run.recipe.model == source.recipe.model
        for name, tensor in source.model().state_dict().items():
            torch.testing.assert_close(run.model("last").state_dict()[name], tensor, rtol=0, atol=1e-6)
    whole, half = results.arms
    assert half.arm.budgets.params < whole.arm.budgets.params and half.difference is not None
    again = read_study(home / "study" / STUDY)
    assert again.arms["half"].data["model"] == Run.open(home / "half").recipe.model.to_dict()


def test_arms_that_start_from_weights_keep_their_size_their_words_and_their_splits(home: Path) -> None:
    with pytest.raises(SpecError, match=r"study\.match=params: resizes.*whole starts from.*study\.match=none"):
        compare(text(home), *KEYS, *STUDY_KEYS, *arms(home), out=home / "no", cache=home / "cache")
    for change, says in (
        ("data.tokenizer.kind=character", "has another tokenizer"),
        ("data.test=0.3", r"data\.test=0\.2"),
    ):
        other = [*KEYS, *STUDY_KEYS, *arms(home), "study.match=none", change]
        with pytest.raises(SpecError, match=rf"arms\.whole\.init_from: .*{says}"):
            compare(text(home), *other, out=home / "no", cache=home / "cache")
