"""Rounds on a CPU, whose bodies run as they are in place of a captured graph."""

from collections.abc import Callable
from typing import Any

from anyformer.core import Model
from anyformer.generation.accelerate.captured_beam import CapturedBeams
from anyformer.generation.accelerate.captured_sampling import CapturedSamplings
from anyformer.generation.decoding import Graphs
from anyformer.generation.engine import Engine


def in_rounds(model: Model, **options: Any) -> tuple[Engine, list[Callable[[], None]]]:
    """An engine that goes in rounds; and the bodies that a GPU would capture."""
    engine, bodies = Engine(model, **options), list[Callable[[], None]]()

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        bodies.append(body)
        body()  # a capture runs it too, and must leave nothing behind
        return body

    engine.graphs = Graphs(model, compiled=False)
    engine.rounds = CapturedBeams(engine.graphs, capture)
    engine.word_rounds = CapturedSamplings(engine.graphs, capture)
    return engine, bodies
