"""Names that can be searched for, and no state that outlives a call: each test lists all offenders."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_budgets import SOURCE, Offenders, nodes, refuse

BANNED = {"found", "told", "said", "given", "asked", "own", "it"}
"""Grammatical particles: a value is named after what it is (losses, candidates, checkpoints)."""
NAMED_AFTER_A_KIND = (
    "parts", "data/sources", "data/synthetic", "data/tokenizers", "data/checks", "generation/samplers", "optim",
    "analysis/claims", "evaluation/metrics", "cli", "objectives",
)  # fmt: skip
"""Folders whose files are called after the kind, verb or claim inside; two families may share a kind."""
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
PACKAGE = Path("src/anyformer")
CACHES = frozenset(
    {
        "core/costs.py:_RECENT",  # total costs of the last models
        "core/discovery.py:_IMPORTED",  # the files of --import, which worker processes import too
        "data/preparation/encoding.py:_WORK",  # the task of a worker process, sent once when it starts
        "ops/attention/flex.py:_MASKS",  # block masks by rule and length
        "ops/attention/flex.py:_GRAPHS",  # compiled FlexAttention by shape
    }
)
"""Module-level state that is declared, `file:NAME`, and why. functools.cache needs no entry."""


def inside(file: Path, folders: tuple[str, ...]) -> bool:
    return file.is_relative_to(Path("src/anyformer")) and any(
        file.is_relative_to(Path("src/anyformer") / folder) for folder in folders
    )


def top(file: Path) -> list[ast.stmt]:
    module = next(node for node in nodes(file) if isinstance(node, ast.Module))
    return module.body


def repeated(places: dict[str, list[tuple[Path, int]]]) -> Offenders:
    return {place: name for name, several in places.items() if len(several) > 1 for place in several}


def values(file: Path) -> Iterator[tuple[int, str]]:
    """Every local name, parameter and loop variable of a file, with its line."""
    for node in nodes(file):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def changed(file: Path) -> dict[str, int]:
    """Names that are changed in place or rebound by `global`, with a line where that is done."""
    names: dict[str, int] = {}
    for node in nodes(file):
        if isinstance(node, ast.Global):
            names |= dict.fromkeys(node.names, node.lineno)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            names |= {node.value.id: node.lineno} if isinstance(node.value, ast.Name) else {}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            names |= {node.func.value.id: node.lineno} if isinstance(node.func.value, ast.Name) else {}
    return names


def local_names(file: Path) -> set[str]:
    """Names bound inside functions, which hide those of the module."""
    functions = [node for node in nodes(file) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    inner = [part for function in functions for part in ast.walk(function)]
    bound = {part.id for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    rebound = {name for part in inner if isinstance(part, ast.Global) for name in part.names}
    return (bound | {part.arg for part in inner if isinstance(part, ast.arg)}) - rebound


def test_no_public_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for file in SOURCE:
        for node in top(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append((file, node.lineno))
    refuse("A public class has a name of its own in src.", repeated(places))


def test_no_file_name_is_used_twice() -> None:
    places = defaultdict(list)
    for file in SOURCE:
        if file.name != "__init__.py" and not inside(file, NAMED_AFTER_A_KIND):
            places[file.name].append((file, 1))
    refuse("A file has a name of its own, unless it is called after a kind, a verb or a claim.", repeated(places))


def test_no_module_keeps_state_that_is_not_declared() -> None:
    state: Offenders = {}
    for file in SOURCE:
        assigned = [node for node in top(file) if isinstance(node, ast.Assign | ast.AnnAssign)]
        targets = [node.targets if isinstance(node, ast.Assign) else [node.target] for node in assigned]
        names = {target.id for several in targets for target in several if isinstance(target, ast.Name)}
        lines = {name: line for name, line in changed(file).items() if name in names - local_names(file)}
        state |= {
            (file, line): f"{name} is changed"
            for name, line in lines.items()
            if f"{file.relative_to(PACKAGE)}:{name}" not in CACHES
        }
    refuse("A module has constants only. State belongs to an object; a cache is declared in CACHES.", state)


def test_importing_a_module_calls_nothing() -> None:
    """Settings of the process (warnings, csv, signals) are changed around the call that needs it."""
    modules = [file for file in SOURCE if file.name != "__main__.py"]
    calls = [(file, node) for file in modules for node in top(file) if isinstance(node, ast.Expr)]
    refuse(
        "A module calls nothing when it is imported, except to register a kernel, a tree or a command.",
        {
            (file, node.lineno): ast.unparse(node)[:100]
            for file, node in calls
            if isinstance(node.value, ast.Call) and "register" not in ast.unparse(node.value.func)
        },
    )


def test_no_value_is_named_by_a_particle() -> None:
    banned: Offenders = {}
    for file in SOURCE:
        banned |= {(file, line): name for line, name in values(file) if name in BANNED}
    refuse("A value is named after what it is: losses, candidates, checkpoints, field.", banned)
