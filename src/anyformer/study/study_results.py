"""The results of a study: all runs of each arm, including failed ones, the verdict, and the table as text."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyformer.core.readable_numbers import counted, human, human_bytes, human_flops
from anyformer.statistics.comparison import Comparison, judge, p_text, verdict
from anyformer.statistics.intervals import Interval, difference_text
from anyformer.statistics.power import MOST, Needed
from anyformer.study.arm_results import ArmResult, RunResult
from anyformer.study.controls import ControlOutcome, controls_sentence
from anyformer.study.judging import Judgement, Split
from anyformer.study.repetition import RepeatedVerdict, repeated_verdicts, repetition_sentence
from anyformer.study.running import Outcome, scored
from anyformer.study.study import StudySpec
from anyformer.study.study_facts import arm_facts, judged_facts
from anyformer.study.study_folder import STUDY, StudyFolder
from anyformer.study.study_yardsticks import YardstickLine, stored_lines
from anyformer.study.tuning import edge, trials_of

if TYPE_CHECKING:
    from anyformer.study.budget_curves import BudgetCurves

Metric = Literal["test_loss", "valid_loss"]
MINUS = "\N{MINUS SIGN}"
JUDGED = ("difference (95 %)", "p", "effect", "seeds needed", "runs")
"""Headings of the columns with the statistical comparison."""
FAR = 2.0
"""Ratio of costs from which on the verdict mentions it."""
LATE = 0.1
"""Relative difference of training times from which on the verdict mentions it, if they were to be equal."""
MATCHED = {"params": "parameters are", "flops": "FLOPs are", "time": "time is", "state": "the decoding state is"}
Row = dict[str, str]
"""Heading -> text."""


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a study folder."""

    folder: StudyFolder
    outcomes: Sequence[Outcome] = ()
    """Outcomes of runs that failed before they had a folder."""
    curves: "BudgetCurves | None" = None
    """Results at all budgets, if these are the results at the main one of several."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The folder of the study, with all its budgets."""
        return self.folder.path if self.curves is None else self.curves.folder

    @property
    def spec(self) -> StudySpec:
        """The settings of the study."""
        return self.folder.spec

    @cached_property
    def runs(self) -> Mapping[str, tuple[RunResult, ...]]:
        """Arm -> its runs, by seed."""
        return self._runs(range(self.spec.seeds))

    @cached_property
    def fresh_runs(self) -> Mapping[str, tuple[RunResult, ...]]:
        """Arm -> its runs that repeat the verdicts, by seed."""
        return self._runs(self.spec.fresh_seeds)

    def _runs(self, seeds: range) -> Mapping[str, tuple[RunResult, ...]]:
        why = {(outcome.task.arm, outcome.task.seed): outcome.why for outcome in self.outcomes}
        return {
            arm.name: tuple(
                RunResult.read(self.folder.run(arm.name, seed), seed, why.get((arm.name, seed), "")) for seed in seeds
            )
            for arm in self.folder.arms
        }

    @property
    def metric(self) -> Metric:
        """The name of the loss that is compared."""
        if self.spec.metric != "auto":
            return self.spec.metric
        tested = any(math.isfinite(run.test_loss) for runs in self.runs.values() for run in runs)
        return "test_loss" if tested else "valid_loss"

    @cached_property
    def comparison(self) -> Comparison:
        """The differences of the arms from the baseline, with their intervals and tests."""
        return self._judged(self.runs)

    def _judged(self, results: Mapping[str, Sequence[RunResult]]) -> Comparison:
        values = [[getattr(run, self.metric) for run in runs] for runs in results.values()]
        return judge(list(results), values, metric=self.metric.replace("_", " "))

    @cached_property
    def repeated(self) -> list[RepeatedVerdict]:
        """The verdicts that were repeated with fresh seeds, at all budgets; empty until all fresh runs have ended."""
        if self.curves is not None:
            return self.curves.repeated
        if not self.spec.repeats or any(map(_is_open, chain(*self.fresh_runs.values()))):
            return []
        return repeated_verdicts(self.comparison, self._judged(self.fresh_runs))

    @property
    def is_look(self) -> bool:
        """True if there are too few pairs for a verdict."""
        return self.comparison.is_look

    @cached_property
    def judged(self) -> Judgement | None:
        """A judgement of one run, for the size of the split that all of them rest on."""
        name: Split = "test" if self.metric == "test_loss" else "valid"
        every = (run.judged for runs in self.runs.values() for run in runs)
        return next((one for one in every if one and one.split == name), None)

    @property
    def unfinished(self) -> int:
        """Number of runs that have not begun or were interrupted; a failed run is not repeated."""
        if self.curves is not None:
            return self.curves.unfinished
        return sum(map(_is_open, chain(*self.runs.values(), *self.fresh_runs.values())))

    @property
    def ended(self) -> bool:
        """True if all runs have ended; the runs of the repetition may still be open."""
        return not any(map(_is_open, chain(*self.runs.values())))

    @property
    def finished(self) -> bool:
        """True if any run has finished."""
        return any(run.state == "complete" for runs in self.runs.values() for run in runs)

    @property
    def next_words(self) -> str:
        """The words after `anyformer` that finish the study, or add seeds if all its runs have ended."""
        words = f"compare {shlex.quote(str(self.path))}"
        return words if self.unfinished else f"{words} --seeds {self.comparison.next_seeds}"

    @property
    def best(self) -> ArmResult:
        """The arm with the lowest mean loss."""
        return min(self.arms, key=lambda arm: (math.isnan(loss := arm.mean(self.metric).value), loss))

    @property
    def representative(self) -> Path | None:
        """The first finished run of the best arm that still has a checkpoint."""
        return self.best.first

    @property
    def yardsticks(self) -> list[YardstickLine]:
        """Simple methods for the same task, beside the best arm."""
        return stored_lines(self.folder.path)

    @cached_property
    def controls(self) -> list[ControlOutcome]:
        """The outcomes of the controls that have pairs of finished runs, or whose runs have all ended."""
        folder = self.folder if self.curves is None else self.curves.controls_folder
        folders = {name: folder.control(name) for name in folder.spec.controls}
        begun = {name: Results(StudyFolder(path)) for name, path in folders.items() if (path / STUDY).is_file()}
        measured = {name: (one.comparison.differences[0], one.unfinished) for name, one in begun.items()}
        return [
            ControlOutcome(name, folder.spec.controls[name], outcome)
            for name, (outcome, unfinished) in measured.items()
            if outcome.pairs or not unfinished
        ]

    @property
    def verdict(self) -> str:
        """The verdict of the study in sentences: first what its controls show, last everything that limits it."""
        return " ".join([self.conclusion, *self.remarks])

    @property
    def conclusion(self) -> str:
        """What the controls show, and the differences from the baseline, at the main budget if there are several."""
        more = "" if self.unfinished else f"anyformer compare {shlex.quote(str(self.path))} --seeds"
        budget = "" if self.curves is None else f"After {counted(self.curves.steps[self.curves.main], 'steps')}: "
        return " ".join([*controls_sentence(self.controls), budget + verdict(self.comparison, more)])

    @property
    def remarks(self) -> list[str]:
        """Where curves cross, how many verdicts came again, and what limits the conclusion: a sentence each."""
        crossings = [] if self.curves is None else self.curves.sentences
        return [*crossings, *repetition_sentence(self.repeated, self.spec.repeats), *self.cautions]

    @property
    def cautions(self) -> list[str]:
        """What to know about the verdict: open and failed runs, its data, unequal costs, and rates at an edge."""
        lost = [f"{arm.name} {len(arm.failed)} of {len(arm.runs)}" for arm in self.arms if arm.failed]
        total = len(self.runs) * len(self.spec.every_seed) if self.curves is None else self.curves.total
        go_on = f"{self.unfinished} of {counted(total, 'runs')} not finished: run `anyformer {self.next_words}`."
        return [
            *([go_on] if self.unfinished else []),
            *([] if self.judged is None else [_basis(self.judged)]),
            *unequal_costs(self),
            *missed_times(self),
            *rates_at_the_edge(self),
            *([f"Runs without a result, left out with their pairs: {', '.join(lost)}."] if lost else []),
        ]

    @property
    def table(self) -> str:
        """The arms with their costs, losses and differences from the baseline, in columns of plain text."""
        return text_table(self)

    @cached_property
    def arms(self) -> tuple[ArmResult, ...]:
        """The arms with their costs, rates and losses, the baseline first."""
        differences = {one.arm: one for one in self.comparison.differences}
        seeds, results = range(self.spec.seeds), []
        for arm in self.folder.arms:
            trials = trials_of(self.folder, arm.name)
            later = {
                task: tuple(scored(self.folder.later(arm.name, seed, task), metric) for seed in seeds)
                for task, metric in self.folder.tasks.items()
            }
            results.append(ArmResult(arm, self.runs[arm.name], trials, differences.get(arm.name), later))
        return tuple(results)

    def to_dict(self) -> dict[str, Any]:
        """What `compare --json` prints."""
        return {
            "study": str(self.path),
            "match": self.spec.match,
            "metric": self.metric,
            "judged": None if self.judged is None else judged_facts(self.judged),
            "seeds": self.spec.seeds,
            "look": self.is_look,
            "verdict": self.verdict,
            "controls": [outcome.to_dict() for outcome in self.controls],
            "repeated": [one.to_dict() for one in self.repeated],
            "yardsticks": [asdict(line) for line in self.yardsticks],
            "budgets": None if self.curves is None else self.curves.to_dict(),
            "arms": [arm_facts(arm, self.metric) for arm in self.arms],
        }


def _is_open(run: RunResult) -> bool:
    """True for a run that has not begun or was interrupted."""
    return run.state not in ("complete", "failed")


def _basis(judged: Judgement) -> str:
    """The sentence about the data that the verdict rests on."""
    if judged.split == "test":
        return f"Judged on {judged.basis}, with the checkpoint of the lowest validation loss of each run."
    return f"Judged on {judged.basis} with the last checkpoint of each run, since the best one was chosen there."


def unequal_costs(results: Results) -> list[str]:
    """Costs that the match leaves more than twice apart, as a sentence; empty if there are none."""
    names: dict[str, tuple[str, Callable[[ArmResult], float]]] = {
        "params": ("the parameters", lambda arm: arm.arm.budgets.params),
        "flops": ("the FLOPs", lambda arm: arm.arm.train_flops),
        "time": ("the training time", lambda arm: arm.mean("wall_s").value),
    }
    first, *others = results.arms
    apart = []
    for arm in others:
        for what, cost in (pair for match, pair in names.items() if match != results.spec.match):
            ratio = cost(arm) / cost(first) if cost(first) > 0 else 1.0
            if ratio > FAR or 0 < ratio < 1 / FAR:
                apart.append(f"{arm.name} has {ratio:.2g} times {what}")
    matched = "Nothing is matched" if results.spec.match == "none" else f"Only {MATCHED[results.spec.match]} matched"
    return [f"{matched}: compared with {first.name}, {', '.join(apart)}."] if apart else []


def missed_times(results: Results) -> list[str]:
    """A sentence if the training time was matched, and the runs did not keep to it; empty if they did."""
    first, *others = results.arms
    seconds = first.mean("wall_s").value
    if results.spec.match != "time" or not seconds > 0:
        return []
    ratios = {arm.name: arm.mean("wall_s").value / seconds for arm in others}
    missed = [f"{name} took {ratio:.2g} times as long" for name, ratio in ratios.items() if abs(ratio - 1) > LATE]
    explained = (
        "The number of steps follows from a measurement before the study; other work on the machine disturbs it."
    )
    return (
        [f"The training times differ: compared with {first.name}, {', '.join(missed)}. {explained}"] if missed else []
    )


def rates_at_the_edge(results: Results) -> list[str]:
    """A sentence for each arm whose best learning rate is the lowest or highest that was tried, at every budget."""
    curves = results.curves
    others = [] if curves is None else curves.others
    places = [(results, ""), *((result, f" at {counted(steps, 'steps')}") for steps, result in others)]
    return [
        f"The best learning rate of {arm.name}{where}, {arm.rate:.2g}, is the {side} that was tried: "
        f"a {side.removesuffix('est')}er one may be better."
        for result, where in places
        for arm in result.arms
        if (side := edge(arm.trials))
    ]


def rows(results: Results) -> list[Row]:
    """A row for each arm, the baseline first; without columns that are empty for all arms."""
    losses, tasks = ("early_loss", "valid_loss", "test_loss"), results.folder.tasks
    table = [
        {
            "arm": arm.name,
            "params": human(arm.arm.budgets.params),
            "ops": human_flops(arm.arm.train_flops) if arm.arm.train_flops else "",
            "steps/s": number(arm.mean("steps_per_s").value, 3),
            "memory": human_bytes(arm.memory_bytes),
            **{name.replace("_", " "): spread(arm.mean(name)) for name in losses},
            **{f"{task} {metric}": spread(arm.score(task)) for task, metric in tasks.items()},
            **_judged(arm, results.is_look),
            "runs": _runs(arm),
        }
        for arm in results.arms
    ]
    return [{name: text for name, text in row.items() if any(other.get(name) for other in table)} for row in table]


def text_table(results: Results) -> str:
    """The table that belongs to the verdict, in aligned columns of plain text."""
    table = [narrow(row, results.metric) for row in rows(results)]
    headings = list(dict.fromkeys(name for row in table for name in row))
    lines = [headings, *([row.get(name, "") for name in headings] for row in table)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def narrow(row: Row, metric: str) -> Row:
    """The columns of a row that belong to the verdict."""
    columns = ("arm", "params", metric.replace("_", " "), *JUDGED)
    return {name: text for name, text in row.items() if name in columns}


def measured(row: Row) -> Row:
    """The columns of a row with the costs and the losses of an arm."""
    return {name: text for name, text in row.items() if name not in JUDGED}


def _judged(arm: ArmResult, look: bool) -> Row:
    one = arm.difference
    row = {"difference (95 %)": "baseline" if one is None else difference_text(one.interval).replace("-", MINUS)}
    if look:
        return row
    p = "" if one is None else "too few" if one.p is None else p_text(one.p).removeprefix("p ").removeprefix("= ")
    effect = "" if one is None or one.effect is None else signed(one.effect)
    return {**row, "p": p, "effect": effect, "seeds needed": needed(one.needed) if one and one.needed else ""}


def _runs(arm: ArmResult) -> str:
    if not arm.failed:
        return str(len(arm.runs))
    broken = [run for run in arm.failed if run.state == "failed"]
    return f"{len(arm.runs) - len(arm.failed)} of {len(arm.runs)}" + (f", {len(broken)} failed" if broken else "")


def needed(estimate: Needed) -> str:
    """The total number of seeds that a verdict would need, with its interval."""
    if estimate.seeds >= MOST:
        return f"{estimate.low} or more"
    end = f"{estimate.high}" if estimate.high < MOST else "?"
    return f"{estimate.seeds} ({estimate.low}-{end})"


def spread(interval: Interval) -> str:
    """Formats a mean with half the width of its interval: 3.214 ±0.012."""
    if not math.isfinite(interval.value):
        return ""
    half = "" if interval.high is None else f" ±{interval.high - interval.value:.2g}"
    return f"{interval.value:.3f}{half}"


def signed(value: float) -> str:
    """A number with its sign and two significant digits: 143.2 -> +140."""
    return f"{float(f'{value:.2g}'):+,g}".replace("-", MINUS)


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else ""
