"""`anyformer doctor`: what is here, and the line to type for what is not."""

import json
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch

import anyformer
from anyformer.cli.main import main
from anyformer.cli.verbs import doctor

Capture = pytest.CaptureFixture[str]
REQUIRES = ["torch>=2.11", 'torch>=2.0; extra == "here"', 'torch>=99; extra == "old"', 'no_such_thing; extra == "gone"']


@pytest.fixture(autouse=True)
def requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)


def test_the_json_names_versions_and_devices(capsys: Capture) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["anyformer"] == anyformer.__version__
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu"]["cores"] >= 1
    assert found["disk"]["free_bytes"] > 0
    assert len(found["cuda"]) == torch.cuda.device_count()


def test_an_extra_is_present_or_has_a_line_to_type(capsys: Capture) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "pip install 'anyformer[gone]'" in text
    assert "needs torch>=99" in text
    assert "anyformer[here]" not in text


def test_quiet_shows_only_what_is_missing(capsys: Capture) -> None:
    assert main(["doctor", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "extra here" not in text
    assert "extra gone" in text
    assert "python" not in text


def test_a_source_tree_knows_no_extras(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert main(["doctor"]) == 0
    assert "runs from a source tree" in capsys.readouterr().out


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("1048576\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert doctor._memory()["total_bytes"] == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("3145728\n")
    assert doctor._memory() == {"total_bytes": 3 << 20, "free_bytes": 2 << 20}


def test_a_system_that_tells_little_still_gets_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(doctor, "CPU_INFO", tmp_path / "nowhere")
    assert main(["doctor"]) == 0
    assert "none that matter" in capsys.readouterr().out
