"""An objective and a metric from outside the package, one file each: the very code of docs/add-an-objective.md."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.evaluation.runs import ONE, file

from anyformer.cli.main import main
from anyformer.core.discovery import discover
from anyformer.errors import SpecError
from anyformer.evaluation.metrics.metric import Metric
from anyformer.objectives.objective import Objective
from anyformer.run import Run, train
from anyformer.viewing.view import View

GUIDE = Path(__file__).parent.parent.parent / "docs" / "add-an-objective.md"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with both files imported; their kinds are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    codes = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, code in zip(("outside_last_word", "outside_mean_length"), codes, strict=True):
        (tmp_path / f"{name}.py").write_text(code)
        importlib.import_module(name)
    yield tmp_path
    Objective.kinds.pop("last_word")
    Metric.kinds.pop("mean_length")
    for name in ("outside_last_word", "outside_mean_length"):
        sys.modules.pop(name)


@pytest.fixture
def trained(outside: Path) -> Run:
    settings = (*ONE, "model.preset=small", "objective.kind=last_word", "data.packing=bucket", "train.steps=30")
    return train(file("texts"), *settings, out=outside / "run", cache=outside / "cache")


def test_an_objective_of_one_file_trains_evaluates_answers_and_is_shown(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [line["loss"] for line in trained.metrics() if "loss" in line]
    assert losses[-1] < losses[0]
    scores = trained.evaluate(limit=8)
    assert {"loss", "perplexity", "mean_length"} == set(scores) and scores["mean_length"].value > 20
    assert any(trained.generate(["the cat runs over the"])[0].startswith(thing) for thing in ("wall", "lake", "tree"))
    assert View.of(trained.folder, "the cat runs").reading.names == ["<bos>", "the", "cat", "runs"]
    assert (trained.folder / "samples").is_dir()
    assert main(["generate", str(trained.folder), "the cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"]
    assert main(["evaluate", str(trained.folder), "--metric", "mean_length", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"mean_length"}


@pytest.mark.parametrize(
    ("line", "method"),
    [("def counts(", "counts"), ("def prepare(", "prepare"), ('= ("generate",)', "fill"), ("def loss(", "loss")],
)
def test_an_objective_that_lacks_a_method_is_reported_with_the_name_of_the_method(
    line: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    broken = code.replace(line, '= ("fill",)' if method == "fill" else f"def no_{method}(")
    (tmp_path / f"lacks_{method}.py").write_text(broken)
    assert main(["--import", str(tmp_path / f"lacks_{method}.py"), "parts", "last_word"]) == 2
    assert f"LastWord: every Objective defines {method}, and this class does not." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("serves", "complaint"),
    [
        ('("generat",)', "LastWord: serves names 'generat', which no trained model can do. Did you mean 'generate'?"),
        ('"generate"', """LastWord: serves must be a tuple, got 'generate'. Write serves = ("generate",)."""),
    ],
)
def test_an_objective_that_serves_no_verb_is_refused_at_its_import(
    serves: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    (tmp_path / "mistyped_verb.py").write_text(code.replace('serves = ("generate",)', f"serves = {serves}"))
    assert main(["--import", str(tmp_path / "mistyped_verb.py"), "parts", "last_word"]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_a_mistyped_metric_is_refused_before_training(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objective.kinds["last_word"], "metrics", ("likelihod",))
    settings = (*ONE, "model.preset=small", "objective.kind=last_word", "data.packing=bucket", "train.steps=3")
    with pytest.raises(SpecError, match=r"LastWord: metrics .*'likelihod'.* Did you mean 'likelihood'\?"):
        train(file("texts"), *settings, out=outside / "run", cache=outside / "cache")
    assert not (outside / "run").exists()


def test_the_guide_names_every_kind_of_metric() -> None:
    discover()
    ours = [kind for kind, cls in Metric.kinds.items() if cls.__module__.startswith("anyformer.")]
    assert ours and [kind for kind in ours if f"`{kind}`" not in GUIDE.read_text()] == []
