"""The size and shape of the code itself: what style asks for and a program can see."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 8
VAGUE = {"utils", "common", "helpers", "misc"}
# modules of the extras: an optional dependency may be imported where it is used
OPTIONAL = {"transformers", "rouge_score", "sacrebleu", "datasets", "pyarrow", "fastapi", "uvicorn", "onnx"}
OPTIONAL |= {"onnxruntime", "onnxscript", "faiss", "usearch", "ray", "tensorboard"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*folders: str) -> list[Path]:
    return sorted(file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.py"))


ALL, SOURCE = files("src", "tests", "tools", "benchmarks"), files("src")
OUTSIDE_CLI = [file for file in SOURCE if "cli" not in file.parts]
every_file = pytest.mark.parametrize("file", ALL, ids=str)
every_source = pytest.mark.parametrize("file", SOURCE, ids=str)
every_source_outside_cli = pytest.mark.parametrize("file", OUTSIDE_CLI, ids=str)


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"), str(file))))


def functions(file: Path) -> Iterator[Function]:
    return (node for node in nodes(file) if isinstance(node, Function))


def parameters(function: Function) -> int:
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    starred = [star for star in (signature.vararg, signature.kwarg) if star]
    return len(named) + len(starred) - bool(named and named[0].arg in ("self", "cls"))


def reads_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(name.name in names for name in node.names)
    return isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"


def packages(node: ast.Import | ast.ImportFrom) -> set[str]:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
    return {module.partition(".")[0] for module in modules}


def refuse(file: Path, rule: str, found: dict[int, str]) -> None:
    """Fail with one clickable line for each finding."""
    places = "\n".join(f"{file}:{line}: {what}" for line, what in sorted(found.items()))
    assert not found, f"{rule}\n{places}"


@every_file
def test_a_file_fits_its_budget(file: Path) -> None:
    lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
    found = {FILE_LINES + 1: f"the file has {lines} lines"} if lines > FILE_LINES else {}
    refuse(file, f"A file has at most {FILE_LINES} lines. Split it by idea.", found)


@every_file
def test_a_function_fits_its_budget(file: Path) -> None:
    lengths = {f: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions(file)}
    found = {f.lineno: f"{f.name} has {lines} lines" for f, lines in lengths.items() if lines > FUNCTION_LINES}
    refuse(file, f"A function has at most {FUNCTION_LINES} lines. Split it by idea.", found)


@every_file
def test_a_signature_fits_its_budget(file: Path) -> None:
    counts = {f: parameters(f) for f in functions(file)}
    found = {f.lineno: f"{f.name} has {count} parameters" for f, count in counts.items() if count > PARAMETERS}
    refuse(file, f"A signature has at most {PARAMETERS} parameters, self not counted. Group them in a value.", found)


@every_file
def test_a_file_is_named_after_an_idea(file: Path) -> None:
    found = {1: f"'{file.stem}' says nothing"} if VAGUE & {file.stem, *file.parts} else {}
    refuse(file, "A file or folder is named after what is in it.", found)


@every_source
def test_nothing_asks_whether_an_attribute_exists(file: Path) -> None:
    calls = (node for node in nodes(file) if isinstance(node, ast.Call))
    found = {call.lineno: ast.unparse(call) for call in calls if ast.unparse(call.func) == "hasattr"}
    refuse(file, "No hasattr: give the base class a default.", found)


@every_source
def test_forward_takes_no_open_ended_arguments(file: Path) -> None:
    forwards = (f for f in functions(file) if f.name == "forward" and f.args.kwarg)
    found = {f.lineno: f"forward({ast.unparse(f.args)})" for f in forwards}
    refuse(file, "No **kwargs in forward: what a part is told is in the Frame.", found)


@every_source_outside_cli
def test_only_the_command_line_reads_the_environment(file: Path) -> None:
    found = {node.lineno: ast.unparse(node) for node in nodes(file) if reads_environment(node)}
    refuse(file, "Environment variables are read in cli/ only, and passed on as arguments.", found)


@every_source_outside_cli
def test_imports_stand_at_the_top(file: Path) -> None:
    inside = (node for f in functions(file) for node in ast.walk(f) if isinstance(node, ast.Import | ast.ImportFrom))
    found = {node.lineno: ast.unparse(node) for node in inside if not packages(node) <= OPTIONAL}
    refuse(file, "Imports inside functions are for cli/ and for optional dependencies.", found)


@every_source
def test_a_folder_of_code_is_a_package(file: Path) -> None:
    inside = (ROOT / file).parent / "__init__.py"
    assert inside.exists(), f"{inside.relative_to(ROOT)} is missing: the import contracts do not see {file}."
