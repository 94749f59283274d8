"""Sinks: destinations of metrics besides the run folder, such as TensorBoard."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    """A destination of metrics."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a step: loss, lr, valid_loss, ..."""

    def close(self) -> None:
        """Called once after the last step."""


class TensorBoard:
    """Event files for TensorBoard, in a folder of the run. Needs the extra `track`."""

    def __init__(self, run: Path, start: int):
        module = importlib.import_module("torch.utils.tensorboard")
        # After a resume, events of later steps that the interrupted run wrote are purged.
        self._writer: Any = module.SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


SINKS: Mapping[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard}
"""Name in `log.sinks` -> constructor of the sink from (run folder, number of steps done)."""
