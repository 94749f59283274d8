"""Whether a run compiles: chosen from its work before the start, stored, and kept when it is resumed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.small import TINY, text
from tests.training.test_trainer import trainer_of

from anyformer.errors import Interrupted
from anyformer.run import train
from anyformer.training import Trainer
from anyformer.training.loop.loss_module import Execution, Updates, execution_of
from anyformer.training.runs.session import Session, Watcher

TEXT = Updates(steps=1000, flops=150_000_000_000, layers=6, one_shape=True, recordable=True)
"""1,000 default updates of the preset `small`."""
PAIRS = replace(TEXT, one_shape=False, recordable=False)


@pytest.mark.parametrize(
    ("updates", "execution"),
    [
        (TEXT, "eager"),
        (replace(TEXT, capturable=True), "captured"),
        (replace(TEXT, steps=100_000, capturable=True), "recorded"),
        (replace(TEXT, steps=5, capturable=True), "eager"),
        (replace(PAIRS, capturable=True), "captured"),
        (replace(PAIRS, steps=100, capturable=True), "eager"),
        (replace(TEXT, steps=5000), "recorded"),
        (replace(TEXT, steps=None, seconds=20.0), "eager"),
        (replace(TEXT, steps=None, seconds=600.0), "recorded"),
        (PAIRS, "eager"),
        (replace(PAIRS, steps=6000), "eager"),
        (replace(PAIRS, steps=100_000), "compiled"),
        (replace(TEXT, flops=5 * 10**13, layers=12, recordable=False), "compiled"),
    ],
)
def test_a_gpu_compiles_what_takes_longer_than_compiling(updates: Updates, execution: Execution) -> None:
    assert execution_of("auto", updates, gpu=True) == execution


def test_the_setting_overrides_the_prediction() -> None:
    assert execution_of(True, TEXT, gpu=True) == "recorded"
    assert execution_of(True, PAIRS, gpu=False) == "compiled"
    assert execution_of(False, replace(TEXT, steps=10**9), gpu=True) == "eager"
    assert execution_of("layers", TEXT, gpu=True) == execution_of("layers", PAIRS, gpu=False) == "layers"


def test_a_cpu_compiles_runs_of_hours() -> None:
    alone = replace(TEXT, recordable=False)
    assert execution_of("auto", alone, gpu=False) == "eager"
    assert execution_of("auto", replace(alone, steps=100_000), gpu=False) == "compiled"


class Noting(Watcher):
    """Notes how a run is executed, and ends it before its first step."""

    execution: str

    def began(self, session: Session) -> None:
        self.execution = session.trainer.execution
        raise Interrupted("before the first step", 1)


def test_a_resumed_run_is_executed_as_it_began(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(text(tmp_path), *TINY, out=tmp_path / "run", cache=tmp_path / "cache", watcher=Noting())
    file, watcher = tmp_path / "run" / "environment.json", Noting()
    environment = json.loads(file.read_text())
    assert environment["execution"] == "eager"
    file.write_text(json.dumps({**environment, "execution": "compiled"}))
    with pytest.raises(Interrupted):
        train(tmp_path / "run", resume=True, cache=tmp_path / "cache", watcher=watcher)
    assert watcher.execution == "compiled"


def test_what_cannot_be_recorded_here_is_compiled(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    assert Trainer(trainer.recipe, trainer.prepared, trainer.world, "recorded").execution == "compiled"
