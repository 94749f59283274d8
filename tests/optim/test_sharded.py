"""Two processes that hold half of each tensor do what one does that holds all."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from tests.optim.moving import parameters
from tests.optim.sharded import SPECS, STEPS, run, work
from torch import Tensor


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """From two processes, which also stored their state whole half-way and read it back into shards."""
    folder: Path = tmp_path_factory.mktemp("sharded")
    where = (str(folder / "meeting"), str(folder / "out"))
    mp.start_processes(work, where, nprocs=2, start_method="fork")  # which import nothing again
    return torch.load(folder / "out")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_sharded_steps_are_those_of_one_process(spec: object, found: dict[str, Tensor]) -> None:
    moved = parameters()
    alone = run(spec, moved, range(STEPS), None)
    alone |= {one.name: one.tensor.detach() for one in moved} | {"norms": alone["norms"][STEPS // 2 :]}
    theirs = {name.partition(":")[2]: value for name, value in found.items() if name.startswith(f"{spec.kind}:")}
    assert alone.keys() == theirs.keys()
    for name, value in alone.items():
        torch.testing.assert_close(theirs[name], value, atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
