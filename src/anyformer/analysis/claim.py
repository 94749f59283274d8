"""A claim of the lectures as an experiment: the statement, the measurement, and the verdict on the statement.

Measuring and judging are separate, so that figures which took hours can be stored, judged again and drawn again.
"""

import importlib
import json
import os
import pkgutil
import platform
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, TypeAlias

import torch

from anyformer.core.fields import did_you_mean
from anyformer.drawing.figures import Line, Panel
from anyformer.errors import SpecError

CLAIMS, RESULTS = "anyformer.analysis.claims", "claims.jsonl"
OURS = Path(__file__).parent / "results"
"""Figures that are part of the package, so that they can be shown without an hour of training."""
Figures: TypeAlias = Mapping[str, Any]
"""Name -> a number, or the list of numbers of a curve; all values can be written as JSON."""
Word: TypeAlias = Literal["holds", "does not hold", "depends"]
Decision: TypeAlias = tuple[bool | Word, str]
"""Whether a claim holds, and the reason, with the figures that decide."""


@dataclass(frozen=True)
class Verdict:
    """Whether the measured figures support the claim, and why."""

    word: Word
    because: str


class Claim(ABC):
    """A statement of the lectures. Any subclass with `ids` in a file of `analysis/claims` is registered."""

    ids: ClassVar[tuple[str, ...]]
    """Rows of the table of lectures that this claim answers; the first one is its name."""
    says: ClassVar[str]
    """The statement of the lectures, paraphrased."""
    trains: ClassVar[bool] = False
    """Whether models have to be trained; such a claim runs only on request, and its figures are stored."""
    times: ClassVar[bool] = False
    """Whether seconds are among the figures, which then belong to one machine and are stored with its name."""
    known: ClassVar[list[type["Claim"]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "ids" in cls.__dict__:
            Claim.known.append(cls)

    @abstractmethod
    def find(self, folder: Path) -> Figures:
        """Measures the figures; files and run folders that this needs are written into `folder`."""

    @abstractmethod
    def decide(self, figures: Figures) -> Decision:
        """Whether the claim follows from the figures, and why."""

    def judge(self, figures: Figures) -> Verdict:
        """The verdict that follows from the figures."""
        decision, because = self.decide(figures)
        if isinstance(decision, bool):
            decision = "holds" if decision else "does not hold"
        return Verdict(decision, because)

    @abstractmethod
    def picture(self, figures: Figures) -> Sequence[Panel]:
        """The figures as panels to draw."""

    def table(self, figures: Figures) -> Sequence[Sequence[str]]:
        """The figures as a table to print, header first; empty if the verdict says it all."""
        return ()


class Measured(Claim):
    """A claim that can be decided with untrained weights, or without weights."""

    @abstractmethod
    def measure(self) -> Figures: ...

    def find(self, folder: Path) -> Figures:
        return self.measure()


class TimedClaim(Claim):
    """A claim about time. Counts are the same everywhere, seconds are those of one machine."""

    times = True
    sizes: ClassVar[tuple[int, ...]]
    """Lengths of the sequences that are timed."""

    @abstractmethod
    def count(self) -> Figures:
        """The figures that do not depend on the machine."""

    @abstractmethod
    def clock(self, sizes: Sequence[int]) -> Figures:
        """Seconds at each of these sizes."""

    def find(self, folder: Path) -> Figures:
        return {**self.count(), **self.clock(self.sizes)}


class TrainedClaim(Claim):
    """A claim about trained models: `find` trains them, one run folder each inside its folder."""

    trains = True


def curves(figures: Figures, x: str, names: Iterable[str], prefix: str = "") -> list[Line]:
    """A line for each name: the figure of that name, behind the prefix, over the figure x."""
    return [Line(name, figures[x], figures[prefix + name]) for name in names]


def mean_curve(by_seed: Sequence[Sequence[float]]) -> list[float]:
    """The mean over seeds at each point of a curve."""
    return [fmean(values) for values in zip(*by_seed, strict=True)]


def seed_curves(figures: Figures, x: str, names: Iterable[str]) -> list[Line]:
    """A line for each name: the mean over the seeds of that figure over the figure x, in a band from least to most."""
    lines = []
    for name in names:
        points = list(zip(*figures[name], strict=True))
        band = [min(values) for values in points], [max(values) for values in points]
        lines.append(Line(name, figures[x], mean_curve(figures[name]), band=band))
    return lines


@dataclass(frozen=True)
class ClaimResult:
    """The figures of one claim, and the command that reproduces them."""

    claim: str
    figures: Figures
    command: str
    seconds: float
    machine: str = ""
    """Where the models were trained, or the seconds among the figures measured; empty for all other figures."""


def result_of(claim: Claim, folder: Path, *, train: bool = False) -> ClaimResult | None:
    """Measures the claim; a claim that trains is read from the stored results unless `train` is set.

    Figures that took training, and times, which cannot be reproduced exactly, are stored in the folder.
    """
    if claim.trains and not train:
        return stored(OURS, folder).get(claim.ids[0])
    result = find(claim, folder / "runs")
    if claim.trains or claim.times:
        store(folder, [result])
    return result


def find(claim: Claim, folder: Path) -> ClaimResult:
    """Measures a claim, training models if it needs them."""
    begin = time.perf_counter()
    figures = json.loads(json.dumps(claim.find(folder)))  # the same types as when read from a file
    command = f"anyformer claims {claim.ids[0]}" + (" --train" if claim.trains else "")
    where = machine() if claim.times or claim.trains else ""
    return ClaimResult(claim.ids[0], figures, command, round(time.perf_counter() - begin, 1), where)


def machine() -> str:
    """The processors, threads and torch version that times were measured with."""
    processor, threads = platform.processor() or platform.machine(), torch.get_num_threads()
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{processor}, {os.cpu_count()} cores, {threads} threads, {gpu}torch {torch.__version__}"


def stored(*folders: Path) -> Mapping[str, ClaimResult]:
    """The stored results of these folders by the name of the claim; later folders take precedence."""
    files = [folder / RESULTS for folder in folders if (folder / RESULTS).exists()]
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {line["claim"]: ClaimResult(**line) for line in lines}


def store(folder: Path, results: Iterable[ClaimResult]) -> Path:
    """Adds results to the file of this folder, one line for each claim, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**stored(folder), **{result.claim: result for result in results}}
    facts = [{key: value for key, value in asdict(merged[name]).items() if value != ""} for name in sorted(merged)]
    (folder / RESULTS).write_text("".join(json.dumps(line) + "\n" for line in facts), encoding="utf-8")
    return folder / RESULTS


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, sorted by their ids."""
    for module in pkgutil.iter_modules(importlib.import_module(CLAIMS).__path__, prefix=f"{CLAIMS}."):
        importlib.import_module(module.name)
    return tuple(sorted((kind() for kind in Claim.known), key=lambda claim: claim.ids))


def claim(name: str) -> Claim:
    """The claim that answers this row of the lectures; `clm-7`, `CLM7` and `7` are short for `CLM-07`."""
    by_id = {row: one for one in claims() for row in one.ids}
    short = re.fullmatch(r"([A-Z]*)[-_ ]?0*(\d+)", name.strip().upper())
    row = f"{short[1] or 'CLM'}-{int(short[2]):02d}" if short else name.upper()
    if row not in by_id:
        raise SpecError(f"no claim is called {name!r}.{did_you_mean(row, by_id)}")
    return by_id[row]
