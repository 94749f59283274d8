"""A part from outside the package, in one file: the very code of docs/add-a-part.md."""

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.checks import CHECKS, apply
from tests.conformance.subjects import subjects_of

from anyformer.cli.main import main
from anyformer.core import ModelSpec, PartSpec, Work, cost, decode
from anyformer.core.discovery import discover

GUIDE = Path(__file__).parent.parent / "docs" / "add-a-part.md"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the guide's file in it; the kind is forgotten afterwards."""
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "outside_fading.py").write_text(code[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    PartSpec.kinds.pop("fading", None)
    sys.modules.pop("outside_fading", None)


def test_a_class_with_a_kind_is_enough(outside: Path) -> None:
    importlib.import_module("outside_fading")
    text = """
        kind = "decoder"
        vocab = 97
        dim = 32
        [stack]
        depth = 2
        [stack.blocks.layer]
        branches = [{ part = { kind = "fading", expand = 2 } }, { part = { kind = "mlp" } }]
    """
    spec = decode(ModelSpec, tomllib.loads(text))
    total = cost(spec, Work(batch=2, length=8)).total
    assert total.params == sum(parameter.numel() for parameter in spec.build().parameters())
    assert total.state_bytes == 2 * 2 * 64 * 4


def test_it_conforms_like_every_other_part(outside: Path) -> None:
    kind = importlib.import_module("outside_fading").Fading
    for subject in subjects_of(kind):
        for check in CHECKS:
            if subject.causal or not check.causal_only:
                apply(check, subject)


def test_an_entry_point_is_found_without_importing_it(
    outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = outside / "outside_fading-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-fading\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[anyformer.parts]\nfading = outside_fading\n")
    discover.cache_clear()
    assert main(["parts", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "fading" in {entry["kind"] for entry in listed}


def test_a_kind_is_refused_twice(outside: Path) -> None:
    importlib.import_module("outside_fading")
    sys.modules.pop("outside_fading")
    with pytest.raises(Exception, match="taken"):
        importlib.import_module("outside_fading")
