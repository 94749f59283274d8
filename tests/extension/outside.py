"""A package of somebody else: one file on the path, its kinds forgotten afterwards; and the verbs run on it."""

import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

from anyformer.cli.main import main
from anyformer.core import Spec

SENTENCES = "\n\n".join(f"the {noun} sees a {noun} and the {noun} runs" for noun in ("cat", "dog", "fox", "cow") * 40)
SMALL = (
    "data.tokenizer.kind=word", "data.context=32", "data.valid=0.25", "data.source.documents=paragraph",
    "train.batch_tokens=128", "train.steps=3", "evaluate.every=0", "checkpoint.every=0", "sample.tokens=2",
    "train.device=cpu", "model.dim=16", "model.stack.depth=1",
)  # fmt: skip


@contextmanager
def installed(folder: Path, name: str, code: str) -> Iterator[Path]:
    """The file NAME.py with this code, imported; the folder also holds a small text."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    (folder / "notes.txt").write_text(SENTENCES, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        try:
            importlib.import_module(name)
            yield folder
        finally:
            sys.modules.pop(name, None)
            for family in Spec.__subclasses__():
                for kind in [kind for kind, cls in family.kinds.items() if cls.__module__ == name]:
                    del family.kinds[kind]


def run(*words: str) -> str:
    """What `anyformer WORDS` prints; it must succeed."""
    output = io.StringIO()
    with redirect_stdout(output):
        assert main(list(words)) == 0
    return output.getvalue()


def train(*overrides: str, target: str = "notes.txt") -> None:
    """A small run in the folder `run`."""
    run("train", target, *SMALL, *overrides, "--out", "run", "--quiet")
