"""The size and shape of the code itself: what style asks for and a program can see."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 8
VAGUE = {"utils", "common", "helpers", "misc"}
# modules of the extras: an optional dependency may be imported where it is used
OPTIONAL = {"transformers", "rouge_score", "sacrebleu", "datasets", "pyarrow", "fastapi", "uvicorn", "onnx"}
OPTIONAL |= {"gguf", "onnxruntime", "onnxscript", "faiss", "usearch", "ray", "tensorboard", "sklearn", "scipy", "bm25s"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*folders: str) -> list[Path]:
    return sorted(file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.py"))


ALL, SOURCE = files("src", "tests", "tools", "benchmarks"), files("src")
OUTSIDE_CLI = [file for file in SOURCE if "cli" not in file.parts]


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"), str(file))))


def functions(file: Path) -> Iterator[Function]:
    return (node for node in nodes(file) if isinstance(node, Function))


def parameters(function: Function) -> int:
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    return len(named) - bool(named and named[0].arg in ("self", "cls"))


def is_verb(function: Function) -> bool:
    """Whether a signature lists the options of a command, which tests/architecture/test_options.py holds."""
    return any(isinstance(it, ast.Call) and ast.unparse(it.func) == "verb" for it in function.decorator_list)


def reads_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(name.name in names for name in node.names)
    return isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def imports(function: Function) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def packages(node: ast.Import | ast.ImportFrom) -> set[str]:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
    return {module.partition(".")[0] for module in modules}


Offenders = dict[tuple[Path, int], str]
"""What is wrong, by file and line."""


def refuse(rule: str, offenders: Offenders) -> None:
    """Fails with one clickable line for each offender."""
    places = "\n".join(f"{file}:{line}: {what}" for (file, line), what in sorted(offenders.items()))
    assert not offenders, f"{rule}\n{places}"


def test_a_file_fits_its_budget() -> None:
    lengths = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in ALL}
    long = {(file, FILE_LINES + 1): f"the file has {n} lines" for file, n in lengths.items() if n > FILE_LINES}
    refuse(f"A file has at most {FILE_LINES} lines. Split it by idea.", long)


def test_a_function_fits_its_budget() -> None:
    lengths = {(file, f.lineno): (f.name, length(f)) for file in ALL for f in functions(file)}
    long = {place: f"{name} has {lines} lines" for place, (name, lines) in lengths.items() if lines > FUNCTION_LINES}
    refuse(f"A function has at most {FUNCTION_LINES} lines. Split it by idea.", long)


def test_a_signature_fits_its_budget() -> None:
    counts = {(file, f.lineno): (f.name, parameters(f)) for file in ALL for f in functions(file) if not is_verb(f)}
    long = {place: f"{name} has {count} parameters" for place, (name, count) in counts.items() if count > PARAMETERS}
    refuse(f"A signature has at most {PARAMETERS} named parameters, self not counted. Group them in a value.", long)


def test_a_file_is_named_after_an_idea() -> None:
    vague = {(file, 1): f"'{file.stem}' says nothing" for file in ALL if VAGUE & {file.stem, *file.parts}}
    refuse("A file or folder is named after what is in it.", vague)


def test_nothing_asks_whether_an_attribute_exists() -> None:
    calls = [(file, node) for file in SOURCE for node in nodes(file) if isinstance(node, ast.Call)]
    asking = {(file, call.lineno): ast.unparse(call) for file, call in calls if ast.unparse(call.func) == "hasattr"}
    refuse("No hasattr: give the base class a default.", asking)


def test_forward_takes_no_open_ended_arguments() -> None:
    forwards = [(file, f) for file in SOURCE for f in functions(file) if f.name == "forward" and f.args.kwarg]
    refuse(
        "No **kwargs in forward: what a part is told is in the Frame.",
        {(file, f.lineno): f"forward({ast.unparse(f.args)})" for file, f in forwards},
    )


def test_only_the_command_line_reads_the_environment() -> None:
    readers = [(file, node) for file in OUTSIDE_CLI for node in nodes(file) if reads_environment(node)]
    refuse(
        "Environment variables are read in cli/ only, and passed on as arguments.",
        {(file, node.lineno): ast.unparse(node) for file, node in readers},
    )


def test_imports_stand_at_the_top() -> None:
    inside = [(file, node) for file in OUTSIDE_CLI for f in functions(file) for node in imports(f)]
    refuse(
        "Imports inside functions are for cli/ and for optional dependencies.",
        {(file, node.lineno): ast.unparse(node) for file, node in inside if not packages(node) <= OPTIONAL},
    )


def test_a_folder_of_code_is_a_package() -> None:
    folders = {file.parent for file in SOURCE}
    missing = {
        (folder / "__init__.py", 1): "missing" for folder in folders if not (ROOT / folder / "__init__.py").exists()
    }
    refuse("A folder of code has an __init__.py, or the import contracts do not see it.", missing)
