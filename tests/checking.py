"""Where `--shapes` checks shapes, and where it need not."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping._import_hook as import_hook
from beartype import beartype
from jaxtyping import config, install_import_hook

CHECKER = f"{__name__}.{beartype.__name__}"
"""A name of our own: compiled files are cached by it, and those of jaxtyping's hook check more."""


class ShapesOnly(import_hook.JaxtypingTransformer):
    """Instruments functions and classes with a shape in an annotation, `Float[Tensor, "b t d"]`. Checking all others,
    whose types mypy checks, takes as long again."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if any(map(_has_shape, (node.returns, *(argument.annotation for argument in arguments)))):
            return super().visit_FunctionDef(node)
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        if any(isinstance(field, ast.AnnAssign) and _has_shape(field.annotation) for field in node.body):
            return super().visit_ClassDef(node)
        self.generic_visit(node)
        return node


def _has_shape(annotation: ast.expr | None) -> bool:
    """True if a pair in brackets ends in a string, anywhere in the annotation."""
    pairs = [part.elts for part in ast.walk(annotation) if isinstance(part, ast.Tuple)] if annotation else []
    return any(isinstance(pair[-1], ast.Constant) and isinstance(pair[-1].value, str) for pair in pairs if pair)


def check_shapes(modules: list[str]) -> None:
    """Checks every annotated shape of modules that are imported from now on."""
    import_hook.JaxtypingTransformer = ShapesOnly  # type: ignore[misc]
    install_import_hook(modules, CHECKER)


@contextmanager
def unchecked() -> Iterator[None]:
    """What was checked once goes through again and again inside, at twice the speed."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
