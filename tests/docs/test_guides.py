"""The code of the README and the guides runs as it is printed, with smaller numbers.

The blocks of a document run in order, in one folder with a `notes.txt`:

- a block under a line that ends with a file name, such as `fading.py`:, is written to that file; a Python file is then
  imported as `anyformer --import` imports it;
- any other python block is executed; names carry over from block to block;
- each `anyformer` line of a sh block is a command, which must succeed.
"""

import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from anyformer.cli.main import main
from anyformer.core import Spec, Work, discovery
from anyformer.data.sources.python_topics import PythonTopics
from anyformer.interop.onnx_graph import PACKAGES
from anyformer.reporting import installed_kinds

ROOT = Path(__file__).parents[2]
GUIDES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("add-a*.md")))
DOCUMENTS = (
    *GUIDES,
    "docs/exporting.md",
    "docs/finetuning.md",
    "docs/own-data.md",
    "docs/python.md",
    "docs/shrinking.md",
    "docs/studies.md",
)
SMALLER = {
    r"\btrain\.steps=500(?=\s)": "train.steps=2 train.batch_tokens=512 sample.tokens=2 evaluate.batches=1",
    r"\bsteps=500, out=": "steps=2, sample=af.SampleSpec(tokens=2), out=",
    r"\bsteps=500\b": "steps=2",
    r"\bmodel\.dim=128\n": "model.dim=32 model.stack.depth=1\n",
    r"\bdim=256\b": "dim=64",  # with 32 no width of a Mamba has as many parameters
    r"\bdim=128\b": "dim=32",
    r"\bdepth=6\b": "depth=1",
    r"\bseeds([ =])6\b": r"seeds\g<1>1",
    r"\bmax_new=50\b": "max_new=2",
    r'(\bgenerate runs/\S+ "Once upon")': r"\g<1> --max-new 2",
    r"\bdata\.source\.label=label(?=\s)": "data.source.label=label model.embedding.buckets=1024",
    r"\bbudgets=\[100,300,1000\]": "budgets=[1,2,3]",
}
"""Numbers of the documents -> the smaller numbers of the test, with those that the document leaves to the defaults.
Nothing else is changed."""
SLOW = re.compile(
    r"af\.compare\(|^anyformer (compare(?!.*--dry-run)|scale|claims|presets|report|cost gpt3|train .*--resume|"
    r"--import \S+ train|export .*onnx|train .*tune=layers|shrink .*--(prune|average|distil|quantise)|"
    r"generate runs/int8)",
    re.MULTILINE,
)
"""Blocks and commands that run in the slow test only."""

FILE = r"`(?P<file>[\w-]+\.(?:py|toml|csv|jsonl))`[^`\n]*:\n\n"
BLOCK = re.compile(rf"(?:{FILE})?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: its language, its text, and the file that the line above it names."""

    language: str
    text: str
    file: str | None

    @property
    def commands(self) -> list[str]:
        """The `anyformer` lines of a shell block, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "sh" else []
        return [line for line in lines if line.startswith("anyformer ")]


def blocks(document: str) -> list[CodeBlock]:
    text = (ROOT / document).read_text(encoding="utf-8")
    for number, smaller in SMALLER.items():
        text = re.sub(number, smaller, text)
    return [CodeBlock(match["language"], match["text"], match["file"]) for match in BLOCK.finditer(text)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module for the code of a document, in a folder of its own; kinds that it registers are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the cache of prepared data
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(discovery, "_IMPORTED", [])
    monkeypatch.setattr(installed_kinds, "_WORK", Work(batch=1, length=16))  # of the cost that `parts` shows
    texts = [record.text for record in PythonTopics().records()]
    (tmp_path / "notes.txt").write_text("\n\n".join(texts[:8])[:6_000], encoding="utf-8")
    discovery.discover()
    kinds, loaded = {family: dict(family.kinds) for family in Spec.__subclasses__()}, set(sys.modules)
    guide = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", guide)
    yield guide
    for family, before in kinds.items():
        family.kinds.clear()
        family.kinds.update(before)
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__ or "").parent == tmp_path:
            del sys.modules[name]


def run(block: CodeBlock, module: types.ModuleType, *, slow: bool) -> None:
    if SLOW.search(block.text) and block.language == "python" and not slow:
        return
    if block.file is not None:
        Path(block.file).write_text(block.text, encoding="utf-8")
        if block.file.endswith(".py"):
            discovery.import_file(block.file)
            build_with_defaults(Path(block.file).stem)
    elif block.language == "python":
        exec(compile(block.text, "guide", "exec"), module.__dict__)
    for command in block.commands:
        if slow or not SLOW.search(command):
            assert main(shlex.split(command, comments=True)[1:]) == 0, command


def build_with_defaults(module: str) -> None:
    """A default outside the range of its field fails here."""
    kinds = [cls for family in Spec.__subclasses__() for cls in family.kinds.values() if cls.__module__ == module]
    assert kinds and all(cls.examples() for cls in kinds), f"{module}.py defines no kind"


def run_document(document: str, module: types.ModuleType, *, slow: bool) -> None:
    for block in blocks(document):
        run(block, module, slow=slow)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_code_of_a_document_runs(document: str, module: types.ModuleType) -> None:
    run_document(document, module, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [name for name in DOCUMENTS if SLOW.search((ROOT / name).read_text(encoding="utf-8"))]
)
def test_the_slow_code_of_a_document_runs_too(document: str, module: types.ModuleType) -> None:
    if "--to onnx" in (ROOT / document).read_text(encoding="utf-8"):
        for name in PACKAGES:
            pytest.importorskip(name, reason="an example exports to ONNX")
    run_document(document, module, slow=True)


def test_every_number_that_is_made_smaller_stands_in_a_document() -> None:
    text = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    assert [number for number in SMALLER if not re.search(number, text)] == []
