"""Measure how large and how tangled the source of a checkout is: `python tools/measure.py [--root PATH] [--json]`.

One script for every commit, so that two tables can be compared. Most rows come from the syntax trees of `src`; the last
ones from `train` and `generate` on a small text, run in processes of their own under `tools/traced.py` (a minute).
"""

import argparse
import ast
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BANNED = {"found", "told", "said", "given", "asked", "own", "it"}
DEVICES = {"cpu", "cuda", "mps"}
NAMED_AFTER_KINDS = {"parts", "sources", "samplers", "tokenizers", "schedules", "synthetic", "checks", "presets"}
NAMED_AFTER_KINDS |= {"claims", "verbs", "metrics"}
"""Folders whose files are named after a kind, a claim, a verb or a metric: other files may have the same name."""
PARAGRAPHS = 150_000
"""Long enough that a reader of the first records does not reach the end of the text."""
TRAINING = ("train.steps=2", "model.dim=32", "model.stack.depth=1")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Row:
    """One line of the table: a number, and the places that it counts."""

    name: str
    value: float
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """One source file, read and parsed once."""

    path: Path
    """Relative to the package."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """In the order of the lines."""
        return sorted(ast.walk(self.tree), key=lambda node: vars(node).get("lineno", 0))

    @property
    def module(self) -> str:
        """The dotted name within the package: `core.frame`, or `models` for its `__init__.py`."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def at(self, node: ast.expr | ast.stmt | ast.arg) -> str:
        return f"{self.path.as_posix()}:{node.lineno}"


def read(package: Path) -> list[File]:
    paths = sorted(package.rglob("*.py"))
    return [File(path.relative_to(package), path.read_text(encoding="utf-8")) for path in paths]


def sizes(files: Sequence[File]) -> list[Row]:
    lines = [len(file.text.splitlines()) for file in files]
    functions = [node for file in files for node in file.nodes if isinstance(node, Function)]
    lengths = [(function.end_lineno or function.lineno) - function.lineno + 1 for function in functions]
    return [
        Row("source lines", sum(lines)),
        Row("source files", len(lines)),
        Row("median lines of a file", statistics.median(lines)),
        Row("median lines of a function", statistics.median(lengths)),
    ]


def duplicate_classes(files: Sequence[File]) -> Row:
    """Names of public classes at the top level of more than one file."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for cls in file.classes:
            if not cls.name.startswith("_"):
                places[cls.name].append(file.at(cls))
    return _repeated("public class names defined twice", places)


def duplicate_files(files: Sequence[File]) -> Row:
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if file.path.name != "__init__.py" and not named_after_kind(file):
            places[file.path.name].append(file.path.as_posix())
    return _repeated("file names used twice", places)


def named_after_kind(file: File) -> bool:
    """A file in a folder of kinds, one that defines the kind of its name, or one that registers a verb."""
    verbs = [node for node in file.tree.body if isinstance(node, Function) and node.name == "register"]
    kinds = {kind for cls in file.classes if (kind := kind_of(cls)) is not None}
    return bool(NAMED_AFTER_KINDS.intersection(file.path.parts) or verbs or file.path.stem in kinds)


def kind_of(cls: ast.ClassDef) -> str | None:
    """ "window" of `class Window(MaskRule, kind="window")`."""
    values = [keyword.value for keyword in cls.keywords if keyword.arg == "kind"]
    return str(values[0].value) if values and isinstance(values[0], ast.Constant) else None


def banned_names(files: Sequence[File]) -> list[Row]:
    """Places where a banned name is bound to a value, and all places where one is read or bound."""
    bound = [f"{file.at(node)} {name}" for file in files for node, name in bindings(file) if name in BANNED]
    nodes = [node for file in files for node in file.nodes]
    used = sum(isinstance(node, ast.Name | ast.arg) and _identifier(node) in BANNED for node in nodes)
    used += sum(isinstance(node, ast.Attribute) and node.attr in BANNED for node in nodes)
    return [Row("banned names bound", len(bound), tuple(bound)), Row("banned names bound or used", used)]


def bindings(file: File) -> Iterator[tuple[ast.expr | ast.arg, str]]:
    """Variables of every kind, parameters, attributes of self, and the fields of classes."""
    for node in file.nodes:
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            yield node, _identifier(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node, node.attr


def _identifier(node: ast.Name | ast.arg) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg


def concrete_checks(files: Sequence[File]) -> Row:
    """`isinstance` on a kind, or on a module that stands in the file of a kind, outside of that file."""
    names = Names(files)
    places = []
    for file in files:
        for call in (node for node in file.nodes if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "isinstance" and len(call.args) == 2:
                classes = [
                    names.definition(file, name.id) for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)
                ]
                foreign = [
                    cls for home, cls in filter(None, classes) if home is not file and names.is_concrete(home, cls)
                ]
                places += [f"{file.at(call)} {cls.name}" for cls in foreign[:1]]
    return Row("isinstance on concrete kinds elsewhere", len(places), tuple(places))


class Names:
    """Finds the definition of a class by the name that a file uses for it, through imports and re-exports."""

    def __init__(self, files: Sequence[File]) -> None:
        self._files = {file.module: file for file in files}

    def definition(self, file: File, name: str) -> tuple[File, ast.ClassDef] | None:
        for cls in file.classes:
            if cls.name == name:
                return file, cls
        for node in file.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anyformer"):
                original = next((alias.name for alias in node.names if name in (alias.asname, alias.name)), None)
                home = self._files.get((node.module or "").removeprefix("anyformer").lstrip("."))
                if original is not None and home is not None and home is not file:
                    return self.definition(home, original)
        return None

    def is_concrete(self, file: File, cls: ast.ClassDef) -> bool:
        """A class with a kind, or a module of torch beside one."""
        beside = any(kind_of(other) is not None for other in file.classes)
        return kind_of(cls) is not None or (beside and self._is_module(file, cls))

    def _is_module(self, file: File, cls: ast.ClassDef) -> bool:
        for base in cls.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            parent = self.definition(file, name)
            if name == "Module" or (parent is not None and parent[1] is not cls and self._is_module(*parent)):
                return True
        return False


def device_checks(files: Sequence[File]) -> Row:
    outside = [file for file in files if file.path.parts[0] != "ops"]
    places = tuple(file.at(node) for file in outside for node in file.nodes if is_device_check(node))
    return Row("device checks outside ops", len(places), places)


def is_device_check(node: ast.AST) -> bool:
    """`device.type == "cuda"` (or !=, in), `x.is_cuda`, and `table.get(device.type)`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "is_cuda"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith(".get") and any(map(_is_type, node.args[:1]))
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    constants = {leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)}
    return any(map(_is_type, sides)) and bool(constants & DEVICES)


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "type"


def core_sizes(files: Sequence[File]) -> list[Row]:
    """Fields of the class Frame, and lines of the file of attention."""
    frames = [cls for file in files if file.path.parts[0] == "core" for cls in file.classes if cls.name == "Frame"]
    fields = [ast.unparse(node.target) for cls in frames for node in cls.body if isinstance(node, ast.AnnAssign)]
    attention = [file for file in files if file.path.as_posix() == "parts/mixers/attention.py"]
    lines = sum(len(file.text.splitlines()) for file in attention)
    return [Row("fields of Frame", len(fields), tuple(fields)), Row("lines of parts/mixers/attention.py", lines)]


def runs(package: Path) -> list[Row]:
    """What `train FILE` and `generate` execute, and how often the file is read before the first step."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "notes.txt"
        text.write_text(sample_text(), encoding="utf-8")
        training = traced(package, text, "train", str(text), *TRAINING, "--out", f"{folder}/run")
        writing = traced(package, text, "generate", f"{folder}/run", "one two", "--max-new", "8")
    executed, values, envelopes = (
        tuple(sorted({*training[key], *writing[key]})) for key in ("files", "values", "envelopes")
    )
    reads = training["reads"]
    return [
        Row("files executed by train and generate", len(executed), executed),
        Row("value types created on that way", len(values), values),
        Row("envelope types on that way", len(envelopes), envelopes),
        Row("reads of the user's file before step 1", reads["opened"]),
        Row("of these to its end", reads["complete"]),
    ]


def sample_text() -> str:
    rng = random.Random(0)
    paragraphs = [" ".join(rng.choices(("one", "two", "three", "four", "five", "six"), k=8)) for _ in range(500)]
    return "\n\n".join(rng.choices(paragraphs, k=PARAGRAPHS))


def traced(package: Path, watched: Path, *words: str) -> dict[str, Any]:
    """The facts that `tools/traced.py` writes about one verb."""
    out = watched.with_suffix(".json")
    script = Path(__file__).with_name("traced.py")
    environment = {**os.environ, "XDG_CACHE_HOME": str(watched.parent / "cache")}
    command = [sys.executable, str(script), str(package), str(watched), str(out), *words]
    done = subprocess.run(command, cwd=watched.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"anyformer {' '.join(words)}: exit code {done.returncode}.\n{done.stderr}")
    return json.loads(out.read_text(encoding="utf-8"))


def measure(root: Path) -> list[Row]:
    package = root.resolve() / "src" / "anyformer"
    files = read(package)
    counted = [*sizes(files), duplicate_classes(files), duplicate_files(files), *banned_names(files)]
    return [*counted, concrete_checks(files), device_checks(files), *core_sizes(files), *runs(package)]


def _repeated(name: str, places: Mapping[str, Sequence[str]]) -> Row:
    repeated = {key: where for key, where in sorted(places.items()) if len(where) > 1}
    return Row(name, len(repeated), tuple(f"{key}: {', '.join(where)}" for key, where in repeated.items()))


def table(rows: Sequence[Row], listed: bool) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{row.name:{width}}  {row.value:>8,g}" for row in rows]
    lists = [f"\n{row.name}:\n" + "\n".join(f"  {place}" for place in row.places) for row in rows if row.places]
    return "\n".join(lines + (lists if listed else []))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the source of a checkout.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure; this one if left out")
    parser.add_argument("--json", action="store_true", help="print JSON with all places")
    parser.add_argument("--list", action="store_true", help="print the places that each row counts")
    options = parser.parse_args()
    rows = measure(options.root)
    print(json.dumps([asdict(row) for row in rows], indent=2) if options.json else table(rows, options.list))
    return 0


if __name__ == "__main__":
    sys.exit(main())
