"""Measured figures as lines of JSON: slow measurements are stored, and judged again whenever they are shown."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from anyformer.analysis.claim import Claim, Figures

RESULTS = "claims.jsonl"
OURS = Path(__file__).parent / "results"
"""Figures that are part of the package, so that they can be shown without an hour of training."""


@dataclass(frozen=True)
class ClaimResult:
    """The figures of one claim, and the command that reproduces them."""

    claim: str
    figures: Figures
    command: str
    seconds: float


def result_of(claim: Claim, folder: Path, *, train: bool = False) -> ClaimResult | None:
    """Measures the claim; a claim that trains is read from the stored results unless `train` is set."""
    if not claim.trains:
        return find(claim, folder)
    if not train:
        return stored(OURS, folder).get(claim.ids[0])
    result = find(claim, folder / "runs")
    store(folder, [result])
    return result


def find(claim: Claim, folder: Path) -> ClaimResult:
    """Measures a claim, training models if it needs them."""
    begin = time.perf_counter()
    figures = json.loads(json.dumps(claim.find(folder)))  # the same types as when read from a file
    command = f"anyformer claims {claim.ids[0]}" + (" --train" if claim.trains else "")
    return ClaimResult(claim.ids[0], figures, command, round(time.perf_counter() - begin, 1))


def stored(*folders: Path) -> Mapping[str, ClaimResult]:
    """The stored results of these folders by the name of the claim; later folders take precedence."""
    lines = [line for folder in folders for line in _lines(folder / RESULTS)]
    return {result.claim: result for result in (ClaimResult(**json.loads(line)) for line in lines)}


def store(folder: Path, results: Iterable[ClaimResult]) -> Path:
    """Adds results to the file of this folder, one line for each claim, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**stored(folder), **{result.claim: result for result in results}}
    text = "".join(json.dumps(asdict(merged[name])) + "\n" for name in sorted(merged))
    (folder / RESULTS).write_text(text, encoding="utf-8")
    return folder / RESULTS


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
