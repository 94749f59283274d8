"""Runs whose last checkpoints are averaged."""

import pytest
import torch
from safetensors.torch import load_file
from tests.training.small import tiny

from anyformer.errors import CheckpointError
from anyformer.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    more = (
        "train.steps=22",
        "checkpoint.every=1",
        "checkpoint.keep=20",
        "checkpoint.keep_best=false",
        "evaluate.every=0",
        "model.stack.depth=1",
        "train.batch_tokens=64",
    )
    return tiny(tmp_path_factory.mktemp("averaged"), "run", *more)


@pytest.mark.row("OPT-03", clause="averages the last k checkpoints, such as 5 or 20")
@pytest.mark.parametrize("last", [1, 5, 20])
def test_a_run_has_the_mean_of_its_last_checkpoints(run: Run, last: int) -> None:
    averaged = run.averaged(last, "cpu").model.state_dict()
    folders = sorted((run.folder / "checkpoints").glob("step-*"))[-last:]
    files = [load_file(folder / "model.safetensors") for folder in folders]
    assert len(files) == last
    for name in files[-1]:
        mean = torch.stack([file[name].double() for file in files]).mean(0)
        torch.testing.assert_close(averaged[name].double(), mean, atol=1e-6, rtol=1e-5)
    assert last == 1 or any(not averaged[name].equal(tensor) for name, tensor in files[-1].items())


def test_more_checkpoints_than_there_are_cannot_be_averaged(run: Run) -> None:
    with pytest.raises(CheckpointError, match=r"has 20 of the 21 checkpoints to average. Set checkpoint.keep=21"):
        run.averaged(21)
