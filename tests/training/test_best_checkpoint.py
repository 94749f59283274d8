"""The checkpoint with the lowest validation loss is saved, kept, and used by every verb."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.training.small import TINY, facts, text, tiny
from tests.training.test_early_stopping import Listening

from anyformer.cli.main import main
from anyformer.disk import step_of
from anyformer.errors import CheckpointError
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_report import run_markdown
from anyformer.run import Run, train

WORSE = (
    "train.steps=15", "optimizer.lr=3", "schedule.kind=constant", "evaluate.every=3", "checkpoint.every=1000",
    "checkpoint.keep=1",
)  # fmt: skip
"""A rate at which the loss only rises after the first validation."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny(tmp_path_factory.mktemp("best"), "run", *WORSE)


def best_step(run: Run) -> int:
    losses = {line["step"]: line["valid_loss"] for line in facts(run) if "valid_loss" in line}
    return min(losses, key=lambda step: losses[step])


def test_a_checkpoint_is_saved_whenever_validation_improves_and_the_best_one_is_kept(run: Run) -> None:
    assert best_step(run) < 15
    assert sorted(step_of(path.name) or 0 for path in run.checkpoints) == [best_step(run), 15]


def test_the_model_is_the_best_one_unless_another_is_named(run: Run) -> None:
    best, last, step = (run.model(choice).state_dict() for choice in ("best", "last", 15))
    assert all(map(torch.equal, last.values(), step.values())) and not all(
        map(torch.equal, best.values(), last.values())
    )
    assert all(map(torch.equal, run.model().state_dict().values(), best.values()))
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7\. There are: 15, "):
        run.model(7)


def test_a_checkpoint_is_described_in_words(run: Run) -> None:
    assert run.describe() == f"step {best_step(run)} of 15, best validation loss"
    assert run.describe("last") == "step 15 of 15, last"


def test_a_damaged_best_checkpoint_leaves_the_last_one(run: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(run.folder, tmp_path / "run"))
    (run.checkpoint("best") / "model.safetensors").write_bytes(b"")
    assert run.checkpoint("best") == run.newest


def test_verbs_name_the_checkpoint_and_take_another(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(run.folder), "the", "--max-new", "3", "--json"]
    texts = {}
    for choice in ("best", "last"):
        assert main([*words, "--checkpoint", choice]) == 0
        shown = capsys.readouterr()
        texts[choice] = json.loads(shown.out.splitlines()[0])
        assert run.describe(choice) in shown.err  # type: ignore[arg-type]
    assert texts["best"] != texts["last"]
    assert main(["view", str(run.folder), "the cat", "--checkpoint", "last"]) == 0
    assert run.describe("last") in capsys.readouterr().err
    assert main([*words, "--checkpoint", "newest"]) == 2
    assert "best, last, or the number of a step" in capsys.readouterr().err


def test_a_new_run_starts_from_the_best_checkpoint_of_another_and_says_so(run: Run, tmp_path: Path) -> None:
    words = ("train.steps=1", "optimizer.lr=1e-9", "schedule.warmup=0", f"init_from={run.folder}")
    listening = Listening()
    new = train(text(tmp_path), *TINY, *words, out=tmp_path / "new", cache=tmp_path / "cache", watcher=listening)
    (message,) = (message for message in listening.messages if message.startswith("init_from"))
    assert message.endswith(f"start with the weights of {run.checkpoint().name}.")
    pairs = zip(new.model().state_dict().values(), run.model("best").state_dict().values(), strict=True)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in pairs)


def test_evaluate_says_that_its_split_chose_the_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    note = "the checkpoint was chosen by its loss on this split"
    for words, chosen in ([], True), (["--checkpoint", "last"], False), (["--split", "train"], False):
        assert main(["evaluate", str(run.folder), "--no-yardsticks", "--limit", "4", *words]) == 0
        assert (note in capsys.readouterr().err) == chosen


def test_the_report_shows_the_scores_that_evaluate_stored_beside_the_yardsticks(run: Run) -> None:
    assert main(["evaluate", str(run.folder), "--limit", "4"]) == 0
    assert not RunFacts.of(run.folder).files.evaluations  # not of the whole split
    assert main(["evaluate", str(run.folder), "--split", "train"]) == 0
    stored, page = RunFacts.of(run.folder).files.evaluations["train"], run_markdown(RunFacts.of(run.folder))
    assert stored["checkpoint"] == run.describe() and f"train, {stored['records']} records" in page
    assert f"{stored['scores']['bits_per_byte']['value']:.4f}" in page
    assert stored["yardsticks"] and all(
        f"by {beside['sentence'].split(' by ')[1]}" in page for beside in stored["yardsticks"]
    )


def test_an_index_belongs_to_the_checkpoint_that_made_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_text("the cat runs\nthe dog looks over the wall\n")
    words = ["search", str(run.folder), str(tmp_path / "lines.txt"), "the fox", "--index", str(tmp_path / "index")]
    for choice in ("best", "last"):
        assert main([*words, "--checkpoint", choice]) == 0
        assert f"{tmp_path / 'index'}: 2 documents" in capsys.readouterr().err  # made, not reused
    assert main([*words, "--checkpoint", "last"]) == 0 and "2 documents" not in capsys.readouterr().err
