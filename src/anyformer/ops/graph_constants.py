"""Functions whose result a compiled graph keeps as a constant."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def constant_in_graphs(function: F) -> F:
    """Marks a function of strings and numbers. torch.compiler's decorator sets the same mark, but imports the compiler,
    which takes two seconds in every command that never compiles."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function
