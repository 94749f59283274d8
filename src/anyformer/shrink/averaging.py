"""`average_checkpoints` and `average_runs`: the mean of weights as a new run (arXiv 1706.03762; 2203.05482)."""

from collections.abc import Sequence
from pathlib import Path

from anyformer.errors import SpecError
from anyformer.optim import average
from anyformer.run import Run, opened
from anyformer.shrink.quantising import refuse_quantised
from anyformer.shrink.run_writing import write_run
from anyformer.training.runs.checkpoint import load_weights


def average_checkpoints(run: Run | str | Path, last: int, out: str | Path) -> Run:
    """The mean of the weights of the last checkpoints of a run."""
    run, out = opened(run), Path(out)
    refuse_quantised(run)
    model = run.averaged(last, "cpu").model
    return write_run(run, out, run.recipe.model, model, {"how": "average", "checkpoints": last})


def average_runs(run: Run | str | Path, others: Sequence[Run | str | Path], out: str | Path) -> Run:
    """The mean of the weights of the best checkpoints of several runs of one model, such as fine-tunings of it."""
    run, out = opened(run), Path(out)
    refuse_quantised(run)
    opened_others = [opened(other) for other in others]
    for other in opened_others:
        if keys := run.recipe.model.diff(other.recipe.model):
            key, (mine, theirs) = next(iter(keys.items()))
            text = f"model.{key} is {mine} in {run.folder}, {theirs} in {other.folder}"
            raise SpecError(f"--average {other.folder}: weights of different models have no mean: {text}.")
    model = run.model()
    load_weights(model, average(each.model().state_dict() for each in (run, *opened_others)))
    how = {"how": "average", "runs": [str(each.folder) for each in (run, *opened_others)]}
    return write_run(run, out, run.recipe.model, model, how)
