"""Captured rounds on a CPU, whose bodies run as they are in place of a CUDA graph."""

from collections.abc import Callable
from typing import Any

from anyformer.core import Model
from anyformer.generation.accelerate.captured_stepper import CapturedRounds
from anyformer.generation.engine import Engine


def in_rounds(model: Model, **options: Any) -> tuple[Engine, list[Callable[[], None]]]:
    """An engine that decodes in rounds; and the bodies that a GPU would capture."""
    engine, bodies = Engine(model, **options), list[Callable[[], None]]()

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        bodies.append(body)
        body()  # a capture runs it too, and must leave nothing behind
        return body

    engine.captured = CapturedRounds(model, compiled=False, capture=capture)
    return engine, bodies
