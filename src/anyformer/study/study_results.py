"""The results of a study: all runs of each arm, including failed ones, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from anyformer.run import Run
from anyformer.statistics.comparison import Comparison, Difference, judge, verdict
from anyformer.statistics.intervals import Interval
from anyformer.statistics.paired import t_interval
from anyformer.study.downstream import DownstreamScore, scored
from anyformer.study.planning import EVALUATIONS, Arm
from anyformer.study.running import Outcome, rates, trial_loss
from anyformer.study.study import StudySpec
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.study.study_table import text_table
from anyformer.training.loop.memory import PER_PARAMETER
from anyformer.training.observers import finite

Metric = Literal["test_loss", "valid_loss"]


@dataclass(frozen=True)
class RunResult:
    """The results of one run; missing numbers are NaN."""

    seed: int
    folder: Path
    state: str
    why: str
    valid_loss: float = math.nan
    test_loss: float = math.nan
    early_loss: float = math.nan
    """Validation loss after an eighth of the budget."""
    steps_per_s: float = math.nan
    wall_s: float = math.nan
    peak_bytes: float = math.nan
    tokens: float = math.nan
    lr: float = math.nan
    """The tuned peak learning rate."""

    @classmethod
    def read(cls, folder: Path, seed: int, why: str = "") -> "RunResult":
        now = standing(folder)
        if now.state != "complete":
            return cls(seed, folder, "failed" if why else now.state, now.why or why)
        lines = list(Run(folder).metrics())
        valid, test = ([line for line in lines if key in line] for key in ("valid_loss", "test_loss"))
        trained = [line for line in lines if "wall_s" in line]
        last, first = trained[-1], trained[0]
        spent = last["wall_s"] - (first["wall_s"] if len(trained) > 1 else 0.0)
        steps = last["step"] - (first["step"] if len(trained) > 1 else 0)
        early = [line for line in valid if line["step"] * EVALUATIONS >= last["step"]]
        return cls(
            seed,
            folder,
            "complete",
            "",
            valid_loss=_number(valid[-1:], "valid_loss"),
            test_loss=_number(test[-1:], "test_loss"),
            early_loss=_number(early[:1], "valid_loss"),
            steps_per_s=steps / spent if spent > 0 else math.nan,
            wall_s=float(last["wall_s"]),
            peak_bytes=float(last.get("peak_bytes") or math.nan),
            tokens=float(last["tokens"]),
            lr=Run(folder).recipe.optimizer.lr,
        )


@dataclass(frozen=True)
class ArmResult:
    """The results of all runs of an arm."""

    arm: Arm
    runs: tuple[RunResult, ...]
    trials: Mapping[float, float]
    """Learning rate -> validation loss of its trial; infinite if it failed."""
    difference: Difference | None
    """Difference from the baseline; None for the baseline itself."""
    later: Mapping[str, tuple[DownstreamScore, ...]]
    """Downstream task -> the scores of the runs, by seed."""

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def failed(self) -> tuple[RunResult, ...]:
        return tuple(run for run in self.runs if run.state != "complete")

    @property
    def memory_bytes(self) -> float:
        """Estimated memory of training: weights, gradients, the optimiser's state, and activations of a batch."""
        recipe = self.arm.recipe
        assert recipe.data is not None
        rows = max(1, recipe.train.batch_tokens // recipe.data.context)
        return PER_PARAMETER * self.arm.budgets.params + rows * self.arm.budgets.activation_bytes

    def mean(self, name: str) -> Interval:
        """The mean of a result over the finished runs, with its 95% interval."""
        return t_interval([getattr(run, name) for run in self.runs])

    def score(self, task: str) -> Interval:
        """The mean score of a downstream task, with its 95% interval."""
        return t_interval([one.score for one in self.later[task]])


@dataclass(frozen=True)
class Results:
    """The results of a study folder."""

    folder: StudyFolder
    outcomes: Sequence[Outcome] = ()
    """Outcomes of runs that failed before they had a folder."""

    @property
    def spec(self) -> StudySpec:
        return self.folder.spec

    @cached_property
    def runs(self) -> Mapping[str, tuple[RunResult, ...]]:
        """Arm -> its runs, by seed."""
        why = {(outcome.arm, outcome.seed): outcome.why for outcome in self.outcomes}
        return {
            arm.name: tuple(
                RunResult.read(self.folder.run(arm.name, seed), seed, why.get((arm.name, seed), ""))
                for seed in range(self.spec.seeds)
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
        values = [[getattr(run, self.metric) for run in runs] for runs in self.runs.values()]
        return judge(list(self.runs), values, metric=self.metric.replace("_", " "))

    @property
    def is_look(self) -> bool:
        """True if there are too few pairs for a verdict."""
        return self.comparison.is_look

    @property
    def verdict(self) -> str:
        """The verdict of the study in a sentence."""
        lost = [f"{arm.name} {len(arm.failed)} of {len(arm.runs)}" for arm in self.arms if arm.failed]
        note = f" Runs without a result, left out with their pairs: {', '.join(lost)}." if lost else ""
        return verdict(self.comparison) + note

    @property
    def table(self) -> str:
        """The arms with their costs, losses and differences from the baseline, in columns of plain text."""
        return text_table(self)

    @cached_property
    def arms(self) -> tuple[ArmResult, ...]:
        differences = {one.arm: one for one in self.comparison.differences}
        return tuple(
            ArmResult(arm, self.runs[arm.name], self._trials(arm), differences.get(arm.name), self._later(arm))
            for arm in self.folder.arms
        )

    def _trials(self, arm: Arm) -> dict[float, float]:
        tried = rates(arm.recipe.optimizer.lr, self.spec.tuning)
        folders = {rate: self.folder.trial(arm.name, rate) for rate in tried}
        return {rate: trial_loss(folder) for rate, folder in folders.items() if folder.exists()}

    def _later(self, arm: Arm) -> dict[str, tuple[DownstreamScore, ...]]:
        seeds = range(self.spec.seeds)
        return {
            task: tuple(scored(self.folder.later(arm.name, seed, task), metric) for seed in seeds)
            for task, metric in self.folder.tasks.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """What `compare --json` prints."""
        return {
            "study": str(self.folder.path),
            "match": self.spec.match,
            "metric": self.metric,
            "seeds": self.spec.seeds,
            "look": self.is_look,
            "verdict": self.verdict,
            "arms": [_arm_facts(arm, self.metric) for arm in self.arms],
        }


def _arm_facts(result: ArmResult, metric: Metric) -> dict[str, Any]:
    arm, difference = result.arm, result.difference
    return {
        "name": arm.name,
        "params": arm.budgets.params,
        "train_flops": arm.train_flops,
        "state_bytes": arm.budgets.state_bytes,
        "memory_bytes": result.memory_bytes,
        "off": arm.off,
        "changes": {key: list(pair) for key, pair in arm.changes.items()},
        "trials": [{"lr": rate, "valid_loss": finite(loss)} for rate, loss in result.trials.items()],
        "seeds": len(result.runs),
        "failed": [{"seed": run.seed, "state": run.state, "why": run.why} for run in result.failed],
        "loss": interval_facts(result.mean(metric)),
        **{name: interval_facts(result.mean(name)) for name in ("valid_loss", "test_loss", "early_loss")},
        "downstream": {task: _later_facts(result, task) for task in result.later},
        "steps_per_s": finite(result.mean("steps_per_s").value),
        "difference": None if difference is None else _difference_facts(difference),
        "runs": [_run_facts(run) for run in result.runs],
    }


def _later_facts(result: ArmResult, task: str) -> dict[str, Any]:
    runs = [{"score": finite(one.score), "state": one.state, "why": one.why} for one in result.later[task]]
    return {**interval_facts(result.score(task)), "runs": runs}


def _difference_facts(one: Difference) -> dict[str, Any]:
    needed = None if one.needed is None else vars(one.needed)
    facts = {"p": one.p, "pairs": one.pairs, "effect": one.effect, "seeds_needed": needed}
    return {**interval_facts(one.interval), **facts}


def _run_facts(run: RunResult) -> dict[str, Any]:
    facts = {name: value for name, value in vars(run).items() if name != "folder"}
    return {
        "run": str(run.folder),
        **{key: finite(value) if isinstance(value, float) else value for key, value in facts.items()},
    }


def interval_facts(interval: Interval) -> dict[str, float | None]:
    """An interval as a dict for JSON."""
    return {"mean": finite(interval.value), "low": interval.low, "high": interval.high}


def _number(lines: Sequence[Mapping[str, Any]], key: str) -> float:
    value = lines[0][key] if lines else None
    return math.nan if value is None else float(value)
