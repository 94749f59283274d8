"""Ctrl-C and SIGTERM: the current step is finished and a checkpoint is saved; a second signal stops at once."""

import signal
import threading
from types import FrameType
from typing import Any

from anyformer.errors import Interrupted

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Interruption:
    """Inside the context, a first signal is only recorded. Does nothing outside the main thread, where Python cannot
    install handlers."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _NAMES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number

    @staticmethod
    def error(number: int, folder: str, step: int) -> Interrupted:
        """The exception of an interrupted run, with its message and exit code."""
        text = f"{_NAMES[signal.Signals(number)]}: saved at step {step}. Go on with: anyformer train {folder} --resume"
        return Interrupted(text, 128 + number)
