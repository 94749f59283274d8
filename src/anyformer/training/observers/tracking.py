"""Sinks: where metrics go besides the run folder. A sink is told numbers and can be closed; nothing else."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    """Somebody who wants the numbers."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """What is known after a step: loss, lr, valid_loss, ..."""

    def close(self) -> None:
        """Nothing more will come."""


class TensorBoard:
    """Event files for TensorBoard, in a folder of the run. Needs the extra `track`."""

    def __init__(self, run: Path, start: int):
        module = importlib.import_module("torch.utils.tensorboard")
        # what an earlier life of the run wrote of later steps is to be forgotten
        self._writer: Any = module.SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


SINKS: Mapping[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard}
"""By the names of `log.sinks`: (run folder, steps already done) -> sink."""
