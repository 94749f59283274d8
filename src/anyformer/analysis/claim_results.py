"""What was measured, as lines of JSON: figures that took long are kept, and judged again whenever they are shown."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from anyformer.analysis.claim import Claim, Figures

RESULTS = "claims.jsonl"
OURS = Path(__file__).parent / "results"
"""Figures that came with the program: nobody has to train for an hour to see them."""


@dataclass(frozen=True)
class ClaimResult:
    """The figures of one claim, and how to get them again."""

    claim: str
    figures: Figures
    command: str
    seconds: float


def result_of(claim: Claim, folder: Path, *, train: bool = False) -> ClaimResult | None:
    """What is measured now; of a claim that trains, what was stored, unless it shall be trained anew."""
    if not claim.trains:
        return find(claim, folder)
    if not train:
        return stored(OURS, folder).get(claim.ids[0])
    result = find(claim, folder / "runs")
    store(folder, [result])
    return result


def find(claim: Claim, folder: Path) -> ClaimResult:
    """Measures a claim now."""
    begin = time.perf_counter()
    figures = json.loads(json.dumps(claim.find(folder)))  # as they will be read again
    command = f"anyformer claims {claim.ids[0]}" + (" --train" if claim.trains else "")
    return ClaimResult(claim.ids[0], figures, command, round(time.perf_counter() - begin, 1))


def stored(*folders: Path) -> Mapping[str, ClaimResult]:
    """What these folders hold, by the claim's name; a later folder counts more."""
    lines = [line for folder in folders for line in _lines(folder / RESULTS)]
    return {result.claim: result for result in (ClaimResult(**json.loads(line)) for line in lines)}


def store(folder: Path, results: Iterable[ClaimResult]) -> Path:
    """Adds to what the folder holds, one line for each claim."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**stored(folder), **{result.claim: result for result in results}}
    text = "".join(json.dumps(asdict(merged[name])) + "\n" for name in sorted(merged))
    (folder / RESULTS).write_text(text, encoding="utf-8")
    return folder / RESULTS


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
