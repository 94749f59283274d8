"""The mutants of a source file: one operator, constant, statement or branch changed, the rest of the text kept.

Not changed, since no test is meant to see it: docstrings, messages of errors and logs, f-strings, annotations,
decorators, assertions, `zip(strict=True)`, `__repr__`, abstract methods, `if TYPE_CHECKING`.
"""

import ast
import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src/anyformer"
PACKAGES = ("core", "parts", "ops", "objectives", "statistics", "data")
GPU_ONLY = "ops/kernels/"
SWAPS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)), ast.Sub: ("-", ("+",)), ast.Mult: ("*", ("/",)), ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)), ast.Mod: ("%", ("*",)), ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)), ast.BitOr: ("|", ("&",)), ast.BitXor: ("^", ("&",)),
    ast.Lt: ("<", ("<=", ">=")), ast.LtE: ("<=", ("<", ">")), ast.Gt: (">", (">=", "<=")), ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)), ast.And: ("and", ("or",)), ast.Or: ("or", ("and",)),
}  # fmt: skip
"""Each operator as it is written, and what replaces it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Mutant:
    """One edit of one file: the bytes from `start` to `end` are replaced by `text`."""

    file: str
    """Relative to the package."""
    line: int
    last_line: int
    start: int
    end: int
    text: str
    before: str
    """The edited lines. With `after` and `file` they name a mutant whose line number has changed."""
    after: str
    in_function: bool
    """Whether the code runs when a function is called, not when the module is imported."""

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}:{self.start}:{self.text}"


class Finder:
    """Collects all mutants of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.line_starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
        self.mutants: list[Mutant] = []
        self.visit(ast.parse(source), "")

    def visit(self, node: ast.AST, function: str) -> None:
        """`function` is the name of the innermost function around the node, empty in the body of a module or class."""
        if hidden(node):
            return
        for start, end, text in self.edits(node, function):
            first, last = self.source.rfind(b"\n", 0, start) + 1, self.source.find(b"\n", end)
            after = self.source[first:start] + text.encode() + self.source[end:last]
            lines = (bisect_right(self.line_starts, byte) for byte in (start, end))
            words = (line.decode().strip() for line in (self.source[first:last], after))
            self.mutants.append(Mutant(self.file, *lines, start, end, text, *words, bool(function)))
        for name, value in ast.iter_fields(node):
            inner = vars(node).get("name", "lambda") if isinstance(node, Function) and name == "body" else function
            for child in visible(node, name, value):
                self.visit(child, inner)

    def span(self, node: Any) -> tuple[int, int]:
        """First and last byte (exclusive) of a node; the columns of `ast` count bytes."""
        starts = self.line_starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def edits(self, node: ast.AST, function: str) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.BinOp() if not any(is_text(side) for side in (node.left, node.right)):
                yield from self.swaps([node.op], [node.left, node.right])
            case ast.AugAssign():
                yield from self.swaps([node.op], [node.target, node.value])
            case ast.Compare():
                yield from self.swaps(node.ops, [node.left, *node.comparators])
            case ast.BoolOp():
                yield from self.swaps([node.op] * (len(node.values) - 1), node.values)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                start = self.span(node)[0]
                yield start, start + (3 if isinstance(node.op, ast.Not) else 1), ""
            case ast.Constant(value=bool() | int() | float()):
                yield *self.span(node), other_constant(node.value)
            case ast.If() | ast.IfExp() | ast.comprehension():
                for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
                    start, end = self.span(test)
                    if not isinstance(test, ast.UnaryOp | ast.Compare):  # their own edits swap the branches
                        yield start, end, f"(not ({self.source[start:end].decode()}))"
        if isinstance(node, ast.stmt) and droppable(node, function):
            yield *self.span(node), "pass"

    def swaps(self, operators: Sequence[ast.AST], operands: Sequence[ast.AST]) -> Iterator[tuple[int, int, str]]:
        """Edits of the operators between operands, where brackets and comments may stand too."""
        for operator, (left, right) in zip(operators, pairwise(operands), strict=True):
            symbol, others = SWAPS.get(type(operator), ("", ()))
            begin, end = self.span(left)[1], self.span(right)[0]
            gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[begin:end])
            match = re.search(rb"\s+".join(re.escape(word.encode()) for word in symbol.split()), gap)
            for other in others if match else ():
                yield begin + match.start(), begin + match.end(), other


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def other_constant(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return str(not value)
    return repr(value + 1 if isinstance(value, int) else value * 2 or 1.0)


def called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def hidden(node: ast.AST) -> bool:
    """Whether nothing inside of a node is meant to be observed by a test."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), right=ast.Name())):  # an alias of types
            return node.col_offset == 0
        case ast.Expr():
            return re.match(r"(print|log|logger|logging)\b", called(node.value)) is not None
    return False


def visible(node: ast.AST, name: str, value: Any) -> list[ast.AST]:
    """The children in one field of a node that mutants are drawn from."""
    children = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
    types, message = name in ("annotation", "returns"), isinstance(node, ast.Raise)
    if types or message or name == "decorator_list" or (name == "keywords" and called(node) == "zip"):
        return []
    return children[:1] if name == "args" and called(node) in ("isinstance", "issubclass") else children


def droppable(node: ast.stmt, function: str) -> bool:
    """Whether a function may run without the statement: not so for first assignments and the last return."""
    match node:
        case ast.Expr(value=ast.Call()):
            return called(node.value) != "super().__init__"
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.If(body=[ast.Return()], orelse=[]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value))
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            return function != "__init__"
    return False


def sample(count: int, seed: int, packages: Iterable[str] = PACKAGES) -> list[Mutant]:
    """Drawn without replacement. A smaller count gives the beginning of a larger one, so a run may stop anywhere."""
    paths = [path for name in packages for path in sorted((PACKAGE / name).rglob("*.py"))]
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in paths}
    finders = [Finder(file, source) for file, source in sources.items() if not file.startswith(GPU_ONLY)]
    mutants = [mutant for finder in finders for mutant in finder.mutants]
    return random.Random(seed).sample(mutants, len(mutants))[:count]
