"""Runs that train a part of their weights: two processes give what one gives, replicated or sharded."""

from pathlib import Path

import pytest
import torch
from tests.training.ranks import CALM, together
from tests.training.small import tiny
from tests.training.test_parallel import FSDP, check_same

from anyformer.run import Run

TUNINGS = {"layers": ("tune=layers", "tune.rates=[1, 1, 0]"), "lora": ("tune=lora", "tune.rank=2")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to start from, and runs of one process and of two for each tuning."""
    folder = tmp_path_factory.mktemp("tuned")
    base = tiny(folder, "base", *CALM, "train.steps=2")
    words = (*CALM, "train.steps=6", f"init_from={base.folder}")
    for name, tuning in TUNINGS.items():
        tiny(folder, f"{name} one", *words, *tuning)

    def work(rank: int) -> None:
        for name, tuning in TUNINGS.items():
            tiny(folder, f"{name} ddp", *words, *tuning)
            tiny(folder, f"{name} fsdp", *words, *tuning, FSDP)

    together(work)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("other", ["ddp", "fsdp"])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_two_processes_tune_as_one_does(home: Path, tuning: str, other: str) -> None:
    check_same(home / f"{tuning} one", home / f"{tuning} {other}")
    base, mine, theirs = (
        Run.open(home / name).model("last").state_dict() for name in ("base", f"{tuning} one", f"{tuning} {other}")
    )
    torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5)
    assert torch.equal(theirs["embedding.weight"], base["embedding.weight"])  # frozen
    assert any(not torch.equal(theirs[key], base[key]) for key in theirs.keys() & base.keys()) == (tuning == "layers")
