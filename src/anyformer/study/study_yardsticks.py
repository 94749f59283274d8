"""Yardsticks beside a study: simple methods for the same task on the same records, compared with its best arm.

They are lines below the table, not arms: they have no seeds. The best arm, by its mean loss, is represented by its
first finished run, which is not chosen by its result.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from anyformer.disk import write_atomically
from anyformer.errors import AnyformerError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.evaluation.yardsticks.yardstick import Yardstick
from anyformer.evaluation.yardsticks.yardstick_comparison import YardstickComparison
from anyformer.run import Run
from anyformer.study.judging import Split

FILE = "yardsticks.json"


@dataclass(frozen=True)
class YardstickLine:
    """A yardstick beside the best arm of a study."""

    run: str
    """The run that it is compared with, relative to the study folder: mamba/seed-0."""
    yardstick: str
    value: float
    sentence: str
    score: str = ""
    """Name of the compared score; empty in files of versions that compared one score for each yardstick."""

    @classmethod
    def of(cls, run: str, comparison: YardstickComparison) -> "YardstickLine":
        spec = comparison.yardstick
        options = ", ".join(f"{key} {value}" for key, value in spec.to_dict().items() if key != "kind")
        name = f"{spec.title} ({options})" if options else spec.title
        arm, _, seed = run.partition("/seed-")
        theirs = comparison.theirs.value
        sentence = f"{name}: {comparison.score.described(theirs)}; {arm}, seed {seed}: {comparison.sentence}"
        return cls(run, spec.kind or "", theirs, sentence, comparison.score.name)


def measured_lines(folder: Path, run: Path, split: Split, cache: Path | None) -> list[YardstickLine]:
    """The yardsticks beside a run, from the file of the study if they are there, or measured now; none if the run has
    no checkpoint or its data are gone."""
    name = run.relative_to(folder).as_posix()
    if lines := [line for line in stored_lines(folder) if line.run == name]:
        return lines
    try:
        lines = [YardstickLine.of(name, comparison) for comparison in _compared(Run(run), split, cache)]
    except AnyformerError:
        return []
    write_atomically(folder / FILE, json.dumps([asdict(line) for line in lines], indent=1))
    return lines


def stored_lines(folder: Path) -> list[YardstickLine]:
    """The yardsticks that were measured before."""
    try:
        facts: Sequence[Mapping[str, object]] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return [YardstickLine(**fact) for fact in facts]  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return []


def _compared(run: Run, split: Split, cache: Path | None) -> list[YardstickComparison]:
    """A run beside its yardsticks on all records of a split, by the scores that yardsticks have."""
    Yardstick.load_kinds()
    objective = run.recipe.objective
    assert objective is not None
    specs = [spec for spec in Yardstick.kinds.values() if issubclass(spec, Yardstick)]
    names = {score.name for spec in specs if spec.metric in objective.metrics for score in spec.scores}
    if not names:
        return []
    records = list(run.records(split=split))
    predictor = run.trained(step="best" if split == "test" else "last")
    scores = evaluate(Job(predictor=predictor, records=records), names).scores
    return run.yardsticks(None if cache is None else cache / "yardsticks").beside(scores, records)[0]
