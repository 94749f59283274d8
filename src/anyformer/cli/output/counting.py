"""The cost card in a process that only counts: torch's compiler is not imported."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from anyformer.core import ModelSpec
from anyformer.reporting.cost_card import CostCard

COMPILER = "torch._dynamo"


def counted(name: str, model: ModelSpec, **sizes: Any) -> CostCard:
    """`CostCard.of`, without the seconds that the import of torch's compiler takes."""
    with without_compiler():
        return CostCard.of(name, model, **sizes)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Inside the context, torch._dynamo is a module that marks nothing, unless it is imported already.

    Operations on the meta device are written in Python. When one first runs, torch marks it as never to be compiled,
    and imports its compiler for that (2 s). A process that compiles nothing needs no such mark.
    """
    if COMPILER in sys.modules:
        yield
        return
    stand_in: Any = ModuleType(COMPILER)
    stand_in.disable = _unchanged
    sys.modules[COMPILER] = torch._dynamo = stand_in
    try:
        yield
    finally:
        del sys.modules[COMPILER], torch._dynamo


def _unchanged(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return function
