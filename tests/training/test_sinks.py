"""Sinks and samples: told what there is, harmless when they fail, and without a trace in the numbers of a run."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training.small import facts, tiny

from anyformer.training.loop.budget import Moments, Step
from anyformer.training.observers import Sampling
from anyformer.training.runs import session
from anyformer.training.runs.run_folder import RunFolder, Sinks, TensorBoard

END = Step(number=2, loss=1.0, lr=0.1, gradient_norm=1.0, tokens=8, epoch=0, wall_s=1.0, tokens_per_s=8.0)


class Memory:
    """A sink that remembers, and fails from a step on."""

    def __init__(self, fails_at: int | None = None):
        self.told: list[tuple[int, Mapping[str, float]]] = []
        self.closed, self.fails_at = False, fails_at

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.fails_at is not None and step >= self.fails_at:
            raise ConnectionError("the network is off\nand more")
        self.told.append((step, values))

    def close(self) -> None:
        self.closed = True


def observer(folder: Path, sinks: dict[str, Memory], said: list[str]) -> Sinks:
    when = Moments(1, lambda: True)
    known = {name: lambda run, start, sink=sink: sink for name, sink in sinks.items()}
    return Sinks(RunFolder(folder), sinks, when, said.append, known=known)


def test_a_sink_is_told_every_number_of_every_line_and_closed(tmp_path: Path) -> None:
    sink = Memory()
    watch, folder = observer(tmp_path, {"memory": sink}, []), RunFolder(tmp_path)
    folder.metric({"step": 1, "loss": 2.0, "terms": {"words": 1.5}, "status": "applied"})
    watch(Step(**{**vars(END), "number": 1}))
    folder.metric({"step": 2, "valid_loss": 3})
    watch(END)
    assert sink.told == [(1, {"loss": 2.0, "terms/words": 1.5}), (2, {"valid_loss": 3.0})]
    assert sink.closed


def test_a_sink_that_fails_is_let_go_with_one_word_and_the_others_go_on(tmp_path: Path) -> None:
    good, bad, said = Memory(), Memory(fails_at=1), list[str]()
    watch, folder = observer(tmp_path, {"bad": bad, "good": good}, said), RunFolder(tmp_path)
    for step in (1, 2):
        folder.metric({"step": step, "loss": 2.0})
        watch(Step(**{**vars(END), "number": step}))
    assert len(good.told) == 2 and not bad.told
    assert len(said) == 1 and "bad failed (ConnectionError: the network is off)" in said[0]
    events = (tmp_path / "events.log").read_text()
    assert events.count("sink_failed") == 1


def test_a_sink_whose_library_is_missing_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = tiny(tmp_path, "run", 'log.sinks=["tensorboard"]', "train.steps=2")
    assert run.complete
    assert (run.folder / "events.log").read_text().count("sink_failed") == 1


def test_tensorboard_is_told_scalars_and_forgets_what_will_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int):
            calls.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            calls.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))  # type: ignore[arg-type]
    sink = TensorBoard(tmp_path, 4)
    sink.log(5, {"loss": 1.0})
    sink.close()
    assert calls == [(str(tmp_path / "tensorboard"), 5), ("loss", 1.0, 5), "closed"]


def test_samples_are_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    run = tiny(tmp_path, "run", "sample.every=2", 'sample.prompts=["the cat", ""]', "train.steps=5")
    assert sorted(file.name for file in (run.folder / "samples").iterdir()) == [
        f"step-{step:06d}.jsonl" for step in (2, 4, 5)
    ]
    lines = [json.loads(line) for line in (run.folder / "samples" / "step-000005.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["the cat", ""] and all(len(line["text"]) <= 4 for line in lines)


def test_samples_change_no_number_of_a_run(tmp_path: Path) -> None:
    often = tiny(tmp_path, "often", "sample.every=1", "train.ema=0.5", "train.steps=3")
    once = tiny(tmp_path, "once", "train.ema=0.5", "train.steps=3")
    assert facts(often) == facts(once)
    last = [run.folder / "samples" / "step-000003.jsonl" for run in (often, once)]
    assert last[0].read_text() == last[1].read_text()


def test_torch_draws_the_same_after_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    class Checked(Sampling):
        def __call__(self, step: Step) -> None:
            before = torch.get_rng_state()
            super().__call__(step)
            kept.append(torch.equal(before, torch.get_rng_state()) and self.trainer.loss_module.model.training)

    monkeypatch.setattr(session, "Sampling", Checked)
    tiny(tmp_path, "run", "sample.every=1", "train.steps=2")
    assert kept == [True, True]


def test_samples_that_fail_are_missed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        raise ValueError("no words")

    monkeypatch.setattr(Sampling, "_prompts", broken)
    run = tiny(tmp_path, "run", "sample.every=1", "train.steps=2")
    assert run.complete
    assert (run.folder / "events.log").read_text().count("samples_failed") == 1
