"""Ours against its peers in one process: the same answer first, then warm-up, then turns (ABAB ...), then rows.

On a GPU the median of device events counts; on a CPU the best of this process' time on one thread, which other work on
the machine disturbs least. A case is noisy if its rounds spread by more than a twentieth of their median.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, NamedTuple

import torch

from benchmarks.clock import Run, clocked, roofs_of, wall_s
from benchmarks.memory import held, peak, taken_back
from benchmarks.rows import Row, Shape

Size = Literal["gpu", "cpu", "tiny"]
WARM = {"cuda": 3, "cpu": 2}
"""Calls before the clock runs, the first included."""
NOISE, LEAST_ROUNDS, LEAST_UNEVEN = 0.05, 3, 8
BEGAN = time.perf_counter()
FAILURES = (RuntimeError, ValueError, AssertionError, ImportError)
"""A peer that cannot do it, or has no room for it, is told so; the others go on."""


class Units(float):
    """How much a call has done, for calls that do not all do the same."""


@dataclass(frozen=True)
class Bench:
    """Where and how thoroughly to measure."""

    device: torch.device = torch.device("cpu")
    size: Size = "cpu"
    rounds: int = 5
    data: Path | None = None
    """Folder with speeches.jsonl.gz, descriptions.jsonl.gz and en-de.tsv.gz; None: texts that every machine has."""
    seconds: float = 60.0
    """Longest that the rounds of one case take; three there are in any case."""
    cache: Path | None = None
    """Folder that keeps prepared texts for other items, runs and machines; None: nothing is kept."""

    @property
    def name(self) -> str:
        """Of the device in rows: a trial run must not be taken for a measurement."""
        return "tiny" if self.size == "tiny" else self.device.type


@dataclass(frozen=True)
class Contender:
    """One of those who take turns."""

    run: Run
    resident: int | None = 0
    """Bytes that it keeps between calls. None: recorded graphs hold them, and the allocator cannot tell how many."""
    made_s: float = 0.0
    """By the clock on the wall: making it may compile."""


def tell(item: str, what: str) -> None:
    """What is being done, and when: a run that is cut off shows where it was."""
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {item}: {what}", file=sys.stderr, flush=True)


def built(device: torch.device, make: Callable[[], Run]) -> Contender:
    """What `make` gives, how much it keeps and how long that took. One that cannot be made fails when it is called."""
    before, began = held(device), time.perf_counter()
    try:
        run = make()
    except FAILURES as error:
        return Contender(partial(_fail, error))
    return Contender(run, held(device) - before, time.perf_counter() - began)


def _fail(error: Exception) -> None:
    raise error


@dataclass(frozen=True, kw_only=True)
class Case:
    """Ours and its peers at the same work."""

    item: str
    shape: Shape
    ours: Contender
    peers: Mapping[str, Contender] = field(default_factory=dict)
    check: Callable[[], bool] = lambda: True
    """Are the answers the same? Asked before anything is timed."""
    amount: float = 1.0
    """Of work in one call, or that is told in rows where calls differ."""
    unit: str = "call"
    flops: float = 0.0
    """The fewest that this much work needs."""
    moved: float = 0.0
    """The fewest bytes that it has to read and write."""
    shapes: int = 1
    """That calls have: on a GPU memory is fetched for each when it comes first, which takes longer than the call."""
    turn: int = 1
    """Calls that are timed together: where one follows the other in earnest, too, with nothing between them."""


class Times(NamedTuple):
    """Of one contender."""

    first_s: float
    """By the clock on the wall: the first call may compile."""
    ms: list[float]
    units: list[float]
    """Of work, in each of those."""
    memory: int = 0

    def unit_ms(self, device: torch.device) -> float:
        """Milliseconds for one unit of work. On a CPU the best call, or all together where calls differ in size."""
        if device.type == "cuda":
            return median(self.rates)  # a call that had to compile a new shape does not count
        return sum(self.ms) / sum(self.units) if self.uneven else min(self.rates)

    @property
    def rates(self) -> list[float]:
        return [ms / units for ms, units in zip(self.ms, self.units, strict=True)]

    @property
    def uneven(self) -> bool:
        return min(self.units) < 0.9 * max(self.units)

    @property
    def noisy(self) -> bool:
        """Rounds of even size say different things."""
        if self.uneven or len(self.ms) < 2:
            return self.uneven and len(self.ms) < LEAST_UNEVEN
        fifths = quantiles(self.rates, n=5)
        return fifths[3] - fifths[0] > NOISE * median(self.rates)


def compare(bench: Bench, case: Case) -> Iterator[Row]:
    """A row for each peer; or one, where ours is alone."""
    tell(case.item, "are the answers the same?")
    wrong = _wrong(case)
    contenders = {"": case.ours, **case.peers}
    firsts, failed = {}, {}
    for name, contender in contenders.items():
        tell(case.item, f"first call of {name or 'ours'}")
        try:
            firsts[name] = contender.made_s + wall_s(contender.run)
        except FAILURES as error:
            failed[name] = _told(error)
    empty = Row(item=case.item, shape=case.shape, device=bench.name, ok=False)
    if "" in failed:
        yield replace(empty, note=failed[""])
        return
    times = _race(bench, case, {name: contenders[name] for name in firsts}, firsts)
    row = _row(bench, case, times[""], wrong)
    yield from (_against(row, name, one.unit_ms(bench.device), one) for name, one in times.items() if name)
    yield from (replace(empty, peer=name, note=note) for name, note in failed.items())
    if not case.peers:
        yield row


def _wrong(case: Case) -> str:
    """Nothing, if the answers are the same."""
    try:
        return "" if case.check() else "the answers differ"
    except FAILURES as error:
        return _told(error)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _race(bench: Bench, case: Case, runs: Mapping[str, Contender], firsts: Mapping[str, float]) -> dict[str, Times]:
    tell(case.item, "warm-up")
    for run in [one.run for one in runs.values()] * (WARM[bench.device.type] - 1 + _unseen(bench, case)):
        run()
    tell(case.item, "rounds")
    times = {name: Times(firsts[name], [], []) for name in runs}
    began = time.perf_counter()
    for done in count():
        if done >= LEAST_ROUNDS and (done >= bench.rounds or time.perf_counter() - began > bench.seconds):
            break
        for name, one in runs.items():
            if done < LEAST_ROUNDS:
                tell(case.item, f"round {done + 1} of {name or 'ours'}")
            ms, results = _undisturbed(bench.device, one.run, case.turn)
            times[name].ms.append(ms)
            times[name].units.append(sum(it if isinstance(it, Units) else case.amount for it in results))
    tell(case.item, f"memory, after {done} rounds; {taken_back(bench.device)} times there was none left")
    return {name: one._replace(memory=_memory(bench.device, runs[name])) for name, one in times.items()}


def _memory(device: torch.device, one: Contender) -> int:
    """0: not known."""
    return 0 if one.resident is None else one.resident + peak(device, one.run)


def _unseen(bench: Bench, case: Case) -> int:
    return case.shapes - 1 if bench.device.type == "cuda" else 0


def _undisturbed(device: torch.device, run: Run, turn: int) -> tuple[float, list[object]]:
    """Some calls in a row. On a GPU another one before them, for which no clock runs: it takes the memory that others
    had kept for themselves, which may take longer than a call. If even then some had to be taken, once more."""
    if device.type == "cuda":
        run()
    results: list[object] = []

    def calls() -> None:
        results[:] = [run() for _ in range(turn)]

    before = taken_back(device)
    ms, _ = clocked(device, calls)
    if taken_back(device) != before:
        ms, _ = clocked(device, calls)
    return ms, results


def _row(bench: Bench, case: Case, ours: Times, wrong: str) -> Row:
    ms, roofs = case.amount * ours.unit_ms(bench.device), roofs_of(bench.device, bench.size == "tiny")
    limit = 1000 * max(case.flops / roofs.flops, case.moved / roofs.bytes) or None
    return Row(
        item=case.item, shape=case.shape, device=bench.name, ours_ms=ms, amount=case.amount, unit=case.unit,
        limit_ms=limit, eff=limit and limit / ms, mem_ours=ours.memory or None, compile_s=ours.first_s, ok=not wrong,
        noisy=ours.noisy, note=wrong,
    )  # fmt: skip


def _against(row: Row, peer: str, unit_ms: float, times: Times) -> Row:
    assert row.ours_ms is not None
    peer_ms, noisy = row.amount * unit_ms, row.noisy or times.noisy
    ratio, memory = peer_ms / row.ours_ms, times.memory or None
    return replace(row, peer=peer, peer_ms=peer_ms, ratio=ratio, mem_peer=memory, noisy=noisy)
