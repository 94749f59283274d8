"""The progress of a study: its callbacks, the runs that have ended so far, and the listener of `compare` in Python."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from anyformer.core.readable_numbers import clock, counted
from anyformer.study.arm_results import RunResult
from anyformer.study.study_cost import announcement
from anyformer.study.study_folder import StudyFolder

REFRESH_S = 0.5
"""Seconds between two looks at the folders of a study."""


class Listener:
    """Callbacks of a study; the base class does nothing."""

    def log(self, text: str) -> None:
        """Called with a message for the user."""

    def planned(self, folders: Sequence[StudyFolder]) -> None:
        """Called before the first run of the studies that are trained together: one study, all of its
        budgets, or all of its controls."""

    def ended(self, path: Path) -> None:
        """Called when `compare` ends, whether the study is finished or was stopped, with the study folder."""

    def moved(self) -> None:
        """Called regularly while runs are in progress, to read the folder again."""

    def trained(self) -> None:
        """Called when all runs of the planned folders have ended."""


class FinishedRuns:
    """The runs of studies that are trained together, as far as they have been judged or have failed."""

    def __init__(self, folders: Sequence[StudyFolder]):
        self.folders = folders
        self.done: dict[Path, RunResult] = {}
        self.failures: set[tuple[Path, str]] = set()
        """Folder of an arm and the kind of a failure, for those whose reason was printed."""

    @property
    def total(self) -> int:
        return sum(len(folder.arms) * len(folder.spec.every_seed) for folder in self.folders)

    def inside(self, folder: StudyFolder) -> int:
        """Number of runs of one of the studies that have ended."""
        return sum(run.is_relative_to(folder.path) for run in self.done)

    def look(self) -> list[RunResult]:
        """Runs that have ended since the last call."""
        places = [
            (folder.run(arm.name, seed), seed)
            for folder in self.folders for arm in folder.arms for seed in folder.spec.every_seed
        ]  # fmt: skip
        results = {run: RunResult.read(run, seed) for run, seed in places if run not in self.done}
        ended = {run: result for run, result in results.items() if result.judged or result.state == "failed"}
        self.done |= ended
        return list(ended.values())

    def new_lines(self) -> Iterator[str]:
        """A line for each run that has ended since the last call."""
        before = len(self.done)
        for number, run in enumerate(self.look(), before + 1):
            loss = "" if math.isnan(run.test_loss) else f"test loss {run.test_loss:.4f}, "
            end = f"{loss}validation loss {run.valid_loss:.4f}, {clock(run.wall_s)}"
            if run.state == "failed":
                end = self._failure(run)
            of = f"{run.folder.parents[1].name}: " if len(self.folders) > 1 else ""
            yield f"[{number:>3}/{self.total}] {of}{run.folder.parent.name} seed {run.seed}: {end}"

    def _failure(self, run: RunResult) -> str:
        """How a run has failed, in full for the first run of an arm that fails in this way."""
        failure = (run.folder.parent, run.kind_of_failure)
        if failure in self.failures:
            return "failed for the same reason"
        self.failures.add(failure)
        return f"failed: {run.why}"


def opening(folder: StudyFolder, runs: FinishedRuns) -> str:
    """The line that announces a study: its runs, their price, and how many of them had ended before."""
    finished = runs.inside(folder)
    known = f" ({counted(finished, 'runs')} finished before)" if finished else ""
    return f"{folder.path}: {announcement(folder.arms, folder.spec)}{known}"


class PrintedStudy(Listener):
    """Listener that prints messages, and a line for each run that has ended, to standard error."""

    def __init__(self) -> None:
        self.runs, self.looked = FinishedRuns(()), 0.0

    def log(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def planned(self, folders: Sequence[StudyFolder]) -> None:
        self.runs = FinishedRuns(folders)
        self.runs.look()
        for folder in folders:
            self.log(opening(folder, self.runs))

    def moved(self) -> None:
        if time.monotonic() - self.looked >= REFRESH_S:
            self.trained()
            self.looked = time.monotonic()

    def trained(self) -> None:
        for line in self.runs.new_lines():
            self.log(line)
