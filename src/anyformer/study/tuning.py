"""The learning rate of each arm: the same number of short trials for all arms, chosen by validation loss.

The first trials lie around the recipe's rate. While the best rate of one arm is the lowest or the highest that it has
tried, every arm gets one more trial, towards its own best: beyond it if it is at the edge, otherwise between it and its
better neighbour. So no arm has more trials than another. All of this follows from the trials that are on the disk.
"""

import math
from collections.abc import Mapping

from anyformer.run import Run
from anyformer.study.study import Tuning
from anyformer.study.study_folder import StudyFolder, standing

Trials = Mapping[float, float]
"""Learning rate -> the lowest validation loss of its trial; infinite if it failed."""


def first_rates(center: float, tuning: Tuning) -> list[float]:
    """The learning rates of the first trials, from low to high; none if there is no tuning."""
    first = -((tuning.trials - 1) // 2)
    return [center * tuning.ratio ** (first + place) for place in range(tuning.trials)] if tuning.trials > 1 else []


def trials_of(folder: StudyFolder, arm: str) -> dict[float, float]:
    """The trials of an arm that have ended, from the lowest rate to the highest."""
    losses = {}
    for path in folder.trials(arm):
        state, run = standing(path)[0], Run(path)
        if state in ("complete", "failed"):
            valid = [float(line["valid_loss"]) for line in run.metrics() if line.get("valid_loss") is not None]
            losses[run.recipe.optimizer.lr] = min(valid, default=math.inf) if state == "complete" else math.inf
    return dict(sorted(losses.items()))


def best_rate(trials: Trials, otherwise: float) -> float:
    """The rate with the lowest loss; another one if all trials failed: the runs will fail too and report the reason."""
    return min(trials, key=trials.__getitem__) if any(map(math.isfinite, trials.values())) else otherwise


def edge(trials: Trials) -> str:
    """ "lowest" or "highest" if the best rate is at that end of the rates that were tried; otherwise empty."""
    rates = sorted(trials)
    if len(rates) < 2 or not any(map(math.isfinite, trials.values())):
        return ""
    best = best_rate(trials, math.nan)
    return "lowest" if best == rates[0] else "highest" if best == rates[-1] else ""


def next_rate(trials: Trials, ratio: float) -> float:
    """One more rate, towards the best: beyond it at an edge, otherwise between it and its better neighbour."""
    rates, best = sorted(trials), min(trials, key=trials.__getitem__)
    place = rates.index(best)
    if place in (0, len(rates) - 1):
        return best * ratio if place else best / ratio
    neighbour = min(rates[place - 1], rates[place + 1], key=trials.__getitem__)
    return math.sqrt(best * neighbour)


def next_trials(centers: Mapping[str, float], tuning: Tuning, tried: Mapping[str, Trials]) -> dict[str, list[float]]:
    """Arm -> the rates to try next; empty when tuning has ended. `centers`: the rate of each arm's recipe."""
    first = {
        arm: [rate for rate in first_rates(center, tuning) if rate not in tried[arm]] for arm, center in centers.items()
    }
    if any(first.values()) or tuning.trials < 2:
        return {arm: rates for arm, rates in first.items() if rates}
    counts = {arm: len(trials) for arm, trials in tried.items()}
    most = max(counts.values())
    behind = [arm for arm, count in counts.items() if count < most]  # a round that was interrupted
    if not behind and most - tuning.trials < tuning.extra and any(map(edge, tried.values())):
        behind = list(tried)
    return {arm: [next_rate(tried[arm], tuning.ratio)] for arm in behind}
