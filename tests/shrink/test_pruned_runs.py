"""`anyformer shrink RUN --prune`: the new folder is a run like any other, and one table compares both."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.evaluation.runs import run_of
from tests.training.small import tiny

from anyformer.cli.main import main
from anyformer.core.module import Linear
from anyformer.errors import SpecError
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_report import run_html
from anyformer.run import Run, train
from anyformer.shrink.curve import CurveSettings, pruning_curve
from anyformer.shrink.shrinking import PruneSettings, prune


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny(tmp_path_factory.mktemp("runs"), "whole", "train.steps=4")


def sparsity(model: torch.nn.Module) -> tuple[int, int]:
    weights = [module.weight for module in model.modules() if isinstance(module, Linear)]
    return sum(int((weight == 0).sum()) for weight in weights), sum(weight.numel() for weight in weights)


def test_one_command_prunes_trains_and_compares(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prune", "heads=0.5", "--prune", "layers=0.5", "--by", "taylor", "--steps", "2", "--limit", "5"]
    out = tmp_path / "half"
    assert main(["shrink", str(source.folder), *arguments, "--out", str(out), "--json", "optimizer.lr=1e-3"]) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    names = ["before", "taylor, pruned", "taylor, trained", "random, pruned", "random, trained"]
    assert list(table) == names
    for key in ("params", "file_bytes", "memory_bytes", "flops_per_token"):
        assert table["taylor, trained"][key] == table["random, trained"][key] < table["before"][key], key
    assert all(row["tokens_per_s"] > 0 and row["scores"]["loss"]["value"] > 0 for row in table.values())
    run = Run.open(out)
    assert run.complete and run.recipe.model.stack.depth == 1  # type: ignore[attr-defined]
    assert run.recipe.optimizer.lr == 1e-3
    assert table["taylor, trained"]["file_bytes"] == (run.checkpoint() / "model.safetensors").stat().st_size


def test_a_pruned_run_is_generated_with_trained_on_and_reported(source: Run, tmp_path: Path) -> None:
    run = prune(source, PruneSettings(amounts=["heads=0.5", "neurons=0.3"]), tmp_path / "small").run
    assert len(run.generate(["the cat", ""])) == 2
    assert run.evaluate(limit=5)["loss"].value > 0
    again = train(run.recipe, "train.steps=2", out=tmp_path / "on", init_from=run, cache=source.folder.parent / "cache")
    assert again.recipe.model == run.recipe.model
    facts = RunFacts.of(run.folder)
    assert facts.parameters == sum(map(torch.numel, run.model().parameters()))
    page = run_html(facts)
    assert "Made smaller" in page and str(source.folder) in page and "heads=0.5" in page


@pytest.mark.slow  # test_removals.py removes parts of both halves in the fast suite
def test_a_pruned_translator_translates(tmp_path: Path) -> None:
    settings = PruneSettings(amounts=["heads=0.5", "neurons=0.5"], by="taylor", steps=2)
    result = prune(run_of("pairs"), settings, tmp_path / "small")
    assert result.before_training is not None
    assert len(result.run.generate(["the cat runs"])) == 1
    assert set(result.run.evaluate(limit=5)) == set(run_of("pairs").evaluate(limit=5))


@pytest.mark.row("OPT-09", clause="pruning can go in rounds with retraining between them")
@pytest.mark.row("OPT-09", clause="the mask persists through training steps")
def test_rounds_of_pruning_and_training_end_at_the_share(source: Run, tmp_path: Path) -> None:
    settings = PruneSettings(amounts=["weights=0.75"], rounds=2, steps=4)
    result = prune(source, settings, tmp_path / "sparse")
    folders = {name: tmp_path / "sparse-stages" / name for name in ("pruned-1", "trained-1", "pruned-2")}
    counts = {name: sparsity(Run.open(folder).model("last")) for name, folder in folders.items()}
    total = counts["pruned-1"][1]
    assert counts == {
        "pruned-1": (round(0.5 * total), total),
        "trained-1": (round(0.5 * total), total),
        "pruned-2": (round(0.75 * total), total),
    }
    assert sparsity(result.run.model("last")) == (round(0.75 * total), total)
    stored = load_file(result.run.checkpoint("last") / "model.safetensors")
    before = load_file(Run.open(folders["pruned-2"]).checkpoint() / "model.safetensors")
    assert any(not torch.equal(stored[name], before[name]) for name in stored)  # the rest was trained


@pytest.mark.row("OPT-09", clause="accuracy is shown as a curve over sparsity")
def test_a_curve_shows_scores_over_the_share_for_both_choices(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.svg"
    arguments = ["shrink", str(source.folder), "--prune", "weights=0.5,0.99", "--limit", "9"]
    assert main([*arguments, "--out", str(picture)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:6]]
    assert [line[:2] for line in lines] == [
        ["0", "nothing"], ["0.5", "magnitude"], ["0.99", "magnitude"], ["0.5", "random"], ["0.99", "random"],
    ]  # fmt: skip
    assert "<svg" in picture.read_text() and "magnitude" in picture.read_text()
    points = pruning_curve(source, CurveSettings(what="weights", shares=[0.5], by=["magnitude"], limit=9))
    assert points[0].scores["loss"].value == pytest.approx(source.evaluate(limit=9)["loss"].value, rel=1e-5)
    assert f"{points[1].scores['loss'].value:.4f}" == lines[1][3]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (PruneSettings(amounts=[]), "name what to remove"),
        (PruneSettings(amounts=["weights=0.5"], rounds=2), "Add --steps"),
        (PruneSettings(amounts=["heads=0.5"], rounds=2, steps=4), "only single weights"),
        (PruneSettings(amounts=["heads=0.5"], overrides=["optimizer.lr=1"]), "nothing is trained"),
        (PruneSettings(amounts=["heads=0.5"], by="luck"), "cannot rank like that"),
    ],
)
def test_settings_that_contradict_each_other_write_nothing(
    settings: PruneSettings, says: str, source: Run, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=says):
        prune(source, settings, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_an_occupied_folder_is_refused(source: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(source.folder), "--prune", "heads=0.5", "--out", str(source.folder)]) == 2
    assert str(source.folder) in capsys.readouterr().err
    assert Run.open(source.folder).complete


def test_every_occupied_folder_is_refused_before_anything_is_written(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for taken in ("half", "half-random", "half-stages"):
        (tmp_path / taken / taken).mkdir(parents=True)
        arguments = ["--prune", "heads=0.5", "--steps", "2", "--out", str(tmp_path / "half")]
        assert main(["shrink", str(source.folder), *arguments]) == 2
        assert f"{tmp_path / taken}: " in capsys.readouterr().err
        assert [folder.name for folder in tmp_path.iterdir()] == [taken]
        shutil.rmtree(tmp_path / taken)
