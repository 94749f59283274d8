"""Studies that take seconds: tiny models on a few sentences."""

from pathlib import Path
from typing import Any

from tests.training.small import text

from anyformer.study import Results, compare

TINY = (
    "model.dim=16", "model.stack.depth=1", "data.tokenizer.kind=byte", "data.context=32", "data.valid=0.2",
    "data.test=0.2", "train.batch_tokens=256", "train.steps=4", "evaluate.every=2", "evaluate.batches=1",
    "log.every=1", "sample.tokens=1",
    "optimizer.kind=adamw", "optimizer.lr=1e-2", "checkpoint.every=2", "study.jobs=1",
    "study.tuning.trials=0", "study.tolerance=0.1",
)  # fmt: skip
PAIR = "study.arms=['transformer', 'lstm']"


def tiny(home: Path, *overrides: str, name: str = "study", **options: Any) -> Results:
    """A study of two arms and two seeds by default."""
    usual = () if any(word.startswith("study.seeds") for word in overrides) else ("study.seeds=2",)
    arms = () if any(word.startswith("study.arms") for word in overrides) else (PAIR,)
    words = (*TINY, *usual, *arms, *overrides)
    return compare(text(home), *words, out=home / name, cache=home / "cache", **options)


def measured(results: Results) -> dict[str, Any]:
    """The results of a study without measured times, the name of its folder and the verdict, which has both."""
    facts = results.to_dict()
    timed = ("steps_per_s", "wall_s", "peak_bytes", "run")
    arms = [{key: value for key, value in arm.items() if key not in timed} for arm in facts["arms"]]
    runs = [[{key: value for key, value in run.items() if key not in timed} for run in arm["runs"]] for arm in arms]
    judged = [{**arm, "runs": some} for arm, some in zip(arms, runs, strict=True)]
    return {**facts, "study": "", "verdict": "", "arms": judged}
