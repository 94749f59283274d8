"""What `train` prints: what it will do and why, then its progress and what to do next.

Progress is one live line on a terminal, plain lines in a log, JSON lines with --json.
"""

import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live as LiveDisplay
from rich.text import Text

from anyformer.cli.output.screen import PipeConsole, Screen, complain
from anyformer.core.discovery import program
from anyformer.errors import AnyformerError, Interrupted, TrainingError
from anyformer.reporting.run_report import write_report
from anyformer.run import Run
from anyformer.training import Session, Step, Watcher
from anyformer.training.distributed import OtherRankFailed
from anyformer.training.loop.budget import Moments, Observer
from anyformer.training.printed_progress import announcement, beginning, step_line
from anyformer.training.recipes.recipe import decode_recipe
from anyformer.training.recipes.resolve import check_model, draft, name_of, provisional
from anyformer.training.runs.run_folder import line

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 40


def rank() -> int:
    """The rank of this process under torchrun; 0 without it."""
    return int(os.environ.get("RANK") or 0)


@contextmanager
def errors_on_one_rank() -> Iterator[None]:
    """Prints an error that all ranks share only on rank 0; other ranks print only errors of their own."""
    try:
        yield
    except AnyformerError as error:
        if rank() == 0:
            raise
        if not isinstance(error, OtherRankFailed | Interrupted | TrainingError):
            complain(f"process {rank()}: {error}")
        raise SystemExit(error.exit_code) from None


def rehearse(screen: Screen, target: str, overrides: Sequence[str], out: Path | None) -> None:
    """Prints what `train` would do, as far as it is known without reading all data."""
    document = draft(target, overrides)
    loaded = decode_recipe(provisional(document), name_of(target, document))
    recipe, folder = loaded.recipe, out or Path("runs") / loaded.name
    check_model(recipe)
    if screen.json:
        screen.data({"run": str(folder), "recipe": recipe.to_dict()})
        return
    screen.lines("\n".join(announcement(loaded)))
    screen.lines(f"would train into {folder}. Nothing was done.")


class TrainingProgress(Watcher):
    """Watcher that prints every logged step, validation losses and a summary."""

    def __init__(self, screen: Screen):
        self.screen = screen
        self.console = PipeConsole(highlight=False, markup=False, stderr=screen.json)
        self.display: LiveDisplay | None = None
        self.losses: list[float] = []
        self.valid: float | None = None
        self.params = 0
        self.session: Session | None = None

    def __enter__(self) -> "TrainingProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.display is not None:
            self.display.stop()
            self.display = None

    def log(self, text: str) -> None:
        if not self.screen.quiet:
            self.console.print(text, soft_wrap=True)

    def began(self, session: Session) -> None:
        self.session = session
        self.params = sum(parameter.tensor.numel() for parameter in session.trainer.learned)
        if self.screen.quiet or self.screen.json:
            return
        for text in beginning(session):
            self.log(text)
        if sys.stdout.isatty():
            self.display = LiveDisplay(console=self.console, refresh_per_second=4, transient=True)
            self.display.start()

    def stepped(self, session: Session) -> Sequence[Observer]:
        logged = Moments(session.loaded.recipe.log.every, session.trainer.finished)
        return (lambda step: self.show(step, logged(step) or step.number == 1 or step.status != "applied"),)

    def evaluated(self, step: int, loss: float) -> None:
        self.valid = loss
        if self.screen.json:
            self.screen.record({"step": step, "valid_loss": loss})
        else:
            self.log(f"step {step:>6}  validation loss {loss:.4f}")

    def finish(self, run: Run) -> None:
        """Writes the report and prints the summary of a finished run with suggested next commands."""
        self.__exit__()
        page = self._report(run)
        if self.screen.json:
            self._print_summary(run)
            return
        if self.losses:
            self.log(f"loss {sparkline(self.losses)} {self.losses[-1]:.4f}")
        self.console.print(f"done: {run.folder}", soft_wrap=True)
        if run.best_step is not None:
            self.log(f"best checkpoint: {run.describe()}")
        if page is not None:
            self.log(f"report: {page}")
        for command, what in _next(run):
            self.log(f"next: {program()} {command}   ({what})")

    def _report(self, run: Run) -> Path | None:
        """Writes the report. A failure is printed but not raised: the run itself is complete."""
        try:
            return write_report(run.folder)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".split("\n")[0]
            complain(f"the run is complete, but its report failed ({why}). Try: {program()} report {run.folder}")
            return None

    def _print_summary(self, run: Run) -> None:
        lines = list(run.metrics())
        last: Any = next((line for line in reversed(lines) if "loss" in line), {})
        valid = next((line["valid_loss"] for line in reversed(lines) if "valid_loss" in line), None)
        facts = {"run": str(run.folder), "step": last.get("step"), "tokens": last.get("tokens")}
        losses = {"train_loss": last.get("loss"), "valid_loss": valid}
        self.screen.record({**facts, **losses, "params": self.params, "wall_s": last.get("wall_s")})

    def show(self, step: Step, logged: bool) -> None:
        self.losses.append(step.loss)
        if self.display is not None:
            self.display.update(Text(self._line(step), no_wrap=True, overflow="ellipsis"))
        elif logged and self.screen.json:
            self.screen.record(line(step))
        elif logged and not self.screen.quiet:
            self.console.print(self._line(step), soft_wrap=True)

    def _line(self, step: Step) -> str:
        assert self.session is not None
        return step_line(step, self.session.trainer.budget, self.valid)


def _next(run: Run) -> Iterator[tuple[str, str]]:
    """Suggested next commands, each with an explanation."""
    folder, parts = shlex.quote(str(run.folder)), run.recipe.objective.parts if run.recipe.objective else ()
    verb: str | None = next((verb for part in parts for verb in part.serves), None)
    if any("chat" in part.default_for for part in parts):
        verb = "chat"
    inputs = {"generate": "some text", "fill": "some <mask> text", "classify": "some text", "chat": "some text"}
    if verb == "classify" and any("labelled_pair" in part.default_for for part in parts):
        yield f"classify {folder} $'some text\\tanother text'", "use the model; a tab separates the two texts"
    elif verb:
        yield f'{verb} {folder} "{inputs[verb]}"', "use the model"
    yield f"evaluate {folder}", "scores with confidence intervals"
    yield "runs", "all runs so far"
    yield f"config show {folder}/recipe.toml", "the recipe; change it and train again"


def sparkline(values: Sequence[float]) -> str:
    """A curve as one line of block characters."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    size = max(1, len(finite) / SPARKS)
    cells = [finite[int(place * size)] for place in range(min(SPARKS, len(finite)))]
    low, high = min(cells), max(cells)
    return "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in cells)
