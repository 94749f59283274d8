"""One comparison as one line of JSON: what was done, how long ours and a peer took, and what the machine allows."""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers")
Shape = Mapping[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row; None: not measured, or nothing to measure."""

    item: str
    shape: Shape
    device: str
    """cpu, cuda; or tiny: a trial run, whose figures mean nothing."""
    peer: str = ""
    """Empty: ours alone."""
    ours_ms: float | None = None
    peer_ms: float | None = None
    ratio: float | None = None
    """How many times faster ours is."""
    amount: float = 1.0
    """Of work in those milliseconds."""
    unit: str = "call"
    limit_ms: float | None = None
    """The least that the measured roofs of this machine allow."""
    eff: float | None = None
    """limit / ours."""
    mem_ours: int | None = None
    """Bytes: what it keeps, and the most that a call needs besides."""
    mem_peer: int | None = None
    compile_s: float | None = None
    """First call of ours, by the clock on the wall."""
    ok: bool = True
    """Ran to the end, and the answers were the same."""
    noisy: bool = False
    note: str = ""
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    date: str = field(default_factory=lambda: date.today().isoformat())

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The same comparison on another day has the same."""
        return self.device, self.item, json.dumps(self.shape, sort_keys=True), self.peer

    @property
    def memory_ratio(self) -> float | None:
        """How many times less memory ours takes."""
        return self.mem_peer / self.mem_ours if self.mem_ours and self.mem_peer else None


def versions() -> dict[str, str]:
    """Of what was measured, and on what."""
    found = {"python": platform.python_version(), "machine": _machine()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def to_line(row: Row) -> str:
    """Figures to six digits: the rest is noise."""
    found = asdict(row).items()
    return json.dumps({name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in found})


def read(files: Iterable[Path]) -> list[Row]:
    """All rows; of several of the same comparison the last."""
    found = (Row(**json.loads(line)) for file in files for line in file.read_text().splitlines() if line.strip())
    return list({row.key: row for row in found}.values())


def write(file: Path, rows: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{to_line(row)}\n" for row in rows))


def measured(rows: Iterable[Row]) -> Iterator[Row]:
    """Those that may be quoted: right, to the end, and against somebody."""
    return (row for row in rows if row.ok and row.ratio is not None)
