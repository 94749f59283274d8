"""The curve of a model's loss over the share that is pruned, with the random choice beside it. Writes no run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyformer.drawing.figures import Drawing, Line, Lines, Panel, beside
from anyformer.errors import DataError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.evaluation.metrics.score import Score
from anyformer.run import Run
from anyformer.shrink.importance import Evidence, importance_of
from anyformer.shrink.measuring import held_out_records
from anyformer.shrink.pruning import WEIGHTS, PruneAmount, Scope, remove, set_to_zero

PANEL_INCHES = (4.2, 3.0)


@dataclass(frozen=True)
class CurvePoint:
    """The scores of a model of which a share was pruned, without training after it."""

    by: str
    share: float
    params: int
    """Parameters that are not zero."""
    scores: dict[str, Score]

    def to_dict(self) -> dict[str, Any]:
        scores = {name: score.to_dict() for name, score in self.scores.items()}
        return {"by": self.by, "share": self.share, "params": self.params, "scores": scores}


@dataclass(frozen=True, kw_only=True)
class CurveSettings:
    """What a curve is measured over."""

    what: str
    shares: Sequence[float]
    by: Sequence[str]
    """Ways to rank, one curve each."""
    scope: Scope = "model"
    limit: int | None = None
    """Number of held-out records; all if None."""
    seed: int = 0


def pruning_curve(run: Run, settings: CurveSettings, cache: Path | None = None) -> list[CurvePoint]:
    """The whole model first, then each share of each way to rank."""
    records = held_out_records(run, settings.limit)
    if not records:
        raise DataError(f"{run.folder}: its held-out records are not there, so the curve cannot be measured.")
    predictor, evidence = run.trained("cpu"), Evidence(run, cache, settings.seed)
    points = []
    for by, share in [("nothing", 0.0), *((by, share) for by in settings.by for share in settings.shares)]:
        spec, model = run.recipe.model, run.model()
        if share and settings.what == WEIGHTS:
            set_to_zero(model, share, importance_of(by, settings.seed), evidence, settings.scope)
        elif share:
            amount = PruneAmount(settings.what, share)
            spec, model = remove(spec, model, amount, importance_of(by, settings.seed), evidence)
        pruned = replace(predictor, spec=spec, models={**predictor.models, "model": model.eval()})
        scores = evaluate(Job(predictor=pruned, records=records)).scores
        nonzero = sum(int(tensor.count_nonzero()) for tensor in model.parameters())
        points.append(CurvePoint(by, share, nonzero, scores))
    return points


def curve_drawing(points: Sequence[CurvePoint], what: str) -> Drawing:
    """A picture of each score over the share that is pruned, beside each other."""
    whole, rest = points[0], points[1:]
    ways = dict.fromkeys(point.by for point in rest)
    panels: list[Panel] = []
    for name in whole.scores:
        lines = []
        for by in ways:
            mine = [whole, *(point for point in rest if point.by == by)]
            lines.append(Line(by, [point.share for point in mine], [point.scores[name].value for point in mine]))
        panels.append(Lines(f"{name} of a pruned model", f"share of {what} removed", name, lines))
    return beside(panels, PANEL_INCHES)
