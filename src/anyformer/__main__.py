"""The entry point of `anyformer` and `python -m anyformer`, which answers a Ctrl-C while the program is loaded."""

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Ends the process at once: a module that is being imported may turn KeyboardInterrupt into another error."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a command in the background may ignore Ctrl-C
    signal.signal(signal.SIGINT, _interrupt)

from anyformer.cli.main import enter  # noqa: E402  # takes most of the time that the handler is for

__all__ = ["enter"]

if __name__ == "__main__":
    enter()
