"""Did a ratio fall? `python -m benchmarks.regress FILE.jsonl` compares with the last accepted ones and exits with 1.

Ratios against a peer in the same run are compared, not times, which depend on the machine and the day. Ratios differ
between processors too, so rows of another processor than the accepted ones are named and not compared. With `--accept`
the rows of the file take the place of the accepted ones of the same comparison.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import rows as stored
from benchmarks.document import RESULTS
from benchmarks.rows import Row, measured
from benchmarks.tables import shape_text, table

TOLERANCE = {False: 0.10, True: 0.25}
"""How much of a ratio may be lost: in a quiet row, in a noisy one."""


@dataclass(frozen=True)
class Fall:
    """A comparison that went worse than it did, or does not work any more."""

    row: Row
    was: float
    now: float | None

    def cells(self) -> list[str]:
        now = f"{self.now:.2f}" if self.now is not None else self.row.note or "not measured"
        return [self.row.device, self.row.item, shape_text(self.row), self.row.peer, f"{self.was:.2f}", now]


def falls(new: Iterable[Row], accepted: Iterable[Row]) -> Iterator[Fall]:
    """What the new rows say of comparisons that were accepted; those that nobody tried again do not count."""
    now = {row.key: row for row in new}
    broken = {(row.device, row.item): row for row in now.values() if not row.ok and not row.shape}
    for old in measured(accepted):
        row = now.get(old.key) or broken.get((old.device, old.item))
        if row is None or old.ratio is None or _machine(row) != _machine(old):
            continue
        ratio = row.ratio if row.ok else None
        if ratio is None or ratio < (1 - TOLERANCE[row.noisy or old.noisy]) * old.ratio:
            yield Fall(replace(old, note=row.note), old.ratio, ratio)


def elsewhere(new: Iterable[Row], accepted: Iterable[Row]) -> str:
    """How many accepted comparisons were measured on another processor, in a sentence; empty if none was."""
    now = {row.key: row for row in new}
    pairs = [(now[old.key], old) for old in measured(accepted) if old.key in now]
    others = [(_machine(row), _machine(old)) for row, old in pairs if _machine(row) != _machine(old)]
    if not others:
        return ""
    here, there = (", ".join(sorted(set(side))) for side in zip(*others, strict=True))
    return f"{len(others)} of {len(pairs)} comparisons are not compared: measured on {here}, accepted on {there}."


def accept(new: Iterable[Row], file: Path) -> None:
    """Trial runs are none, nor is an item that did not run. A profile takes the place of the whole old one."""
    new = [row for row in new if row.device != "tiny" and row.shape]
    profiled = {_profile(row) for row in new if "group" in row.shape}
    old = [row for row in stored.read([file]) if _profile(row) not in profiled] if file.exists() else []
    kept = {row.key: row for row in [*old, *new]}
    stored.write(file, sorted(kept.values(), key=lambda row: (row.device, row.item)))


def _machine(row: Row) -> str:
    return str(row.versions.get("machine", ""))


def _profile(row: Row) -> tuple[object, ...]:
    """Whose time it is a part of."""
    return row.device, row.item, row.shape.get("work"), row.shape.get("who")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--accepted", type=Path, default=RESULTS)
    parser.add_argument("--accept", action="store_true", help="keep the new rows, whatever they say")
    options = parser.parse_args()
    new = stored.read(options.files)
    accepted = stored.read([options.accepted]) if options.accepted.exists() else []
    found = list(falls(new, accepted))
    if sentence := elsewhere(new, accepted):
        print(sentence)
    if found:
        print(table(("device", "item", "work", "peer", "was", "now"), [fall.cells() for fall in found]))
    if options.accept:
        accept(new, options.accepted)
    sys.exit(1 if found and not options.accept else 0)


if __name__ == "__main__":
    main()
