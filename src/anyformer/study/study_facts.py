"""The results of a study as plain data, for `compare --json` and report.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.statistics.comparison import Difference
from anyformer.statistics.intervals import Interval
from anyformer.study.arm_results import ArmResult
from anyformer.study.judging import Judgement
from anyformer.training.runs.run_folder import finite


def arm_facts(result: ArmResult, metric: str) -> dict[str, Any]:
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
        "downstream": {
            task: {**interval_facts(result.score(task)), "runs": [_finite_facts(one._asdict()) for one in scores]}
            for task, scores in result.later.items()
        },
        "steps_per_s": finite(result.mean("steps_per_s").value),
        "difference": None if difference is None else _difference_facts(difference),
        "runs": [{"run": str(run.folder), **_finite_facts(vars(run))} for run in result.runs],
    }


def judged_facts(judged: Judgement) -> dict[str, Any]:
    return {"split": judged.split, "checkpoint": judged.checkpoint, "texts": judged.texts, "tokens": judged.tokens}


def _difference_facts(one: Difference) -> dict[str, Any]:
    needed = None if one.needed is None else vars(one.needed)
    facts = {"p": one.p, "pairs": one.pairs, "lower": one.lower, "effect": one.effect, "seeds_needed": needed}
    return {**interval_facts(one.interval), **facts}


def _finite_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for JSON, which has no NaN; without paths and judgements."""
    plain = {key: value for key, value in facts.items() if not isinstance(value, Path | Judgement)}
    return {key: finite(value) if isinstance(value, float) else value for key, value in plain.items()}


def interval_facts(interval: Interval) -> dict[str, float | None]:
    """An interval as a dict for JSON."""
    return {"mean": finite(interval.value), "low": interval.low, "high": interval.high}
