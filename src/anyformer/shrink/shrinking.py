"""`prune`: a smaller run from a run, fine-tuned on its own data if wanted, with the random choice beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from anyformer.core import Model, ModelSpec
from anyformer.errors import SpecError
from anyformer.optim.keep_zeros import keeping_zeros
from anyformer.run import Run, opened, train
from anyformer.shrink.importance import Evidence, Importance, importance_of
from anyformer.shrink.pruning import WEIGHTS, PruneAmount, Scope, remove, set_to_zero
from anyformer.shrink.quantising import refuse_quantised
from anyformer.shrink.run_writing import note_origin, source_recipe, with_steps, write_run
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.runs.run_folder import refuse_occupied
from anyformer.training.runs.session import Watcher

RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class PruneSettings:
    """What is pruned, how it is chosen, and how the rest is trained afterwards."""

    amounts: Sequence[str]
    """Shares to remove, such as "heads=0.5"; several are removed one after the other."""
    by: str = "magnitude"
    """How units or weights are ranked: the name of an `Importance`."""
    scope: Scope = "model"
    """Which single weights are ranked against each other."""
    steps: int = 0
    """Updates on the run's own data after pruning, in all rounds together."""
    rounds: int = 1
    """Rounds of pruning and training, of single weights."""
    seed: int = 0
    """Seed of a random choice, and of the batches that others rank by."""
    overrides: Sequence[str] = ()
    """Dotted keys for the training after pruning, such as "optimizer.lr=1e-4"."""

    def parsed(self) -> list[PruneAmount]:
        """The amounts; raises SpecError if the settings contradict each other."""
        amounts = [PruneAmount.parse(text) for text in self.amounts]
        if not amounts:
            raise SpecError("--prune: name what to remove, for example --prune heads=0.5.")
        importance_of(self.by)
        if self.rounds > 1 and not self.steps:
            raise SpecError(f"--rounds {self.rounds}: rounds have training between them. Add --steps N.")
        if self.rounds > 1 and any(amount.what != WEIGHTS for amount in amounts):
            raise SpecError(f"--rounds {self.rounds}: only single weights are pruned in rounds. Use --prune weights=P.")
        if self.overrides and not self.steps:
            raise SpecError(f"{self.overrides[0]}: nothing is trained without --steps N.")
        return amounts

    def to_dict(self) -> dict[str, Any]:
        """The settings as they are stored with the run."""
        keys = ("by", "scope", "steps", "rounds", "seed")
        return {"prune": list(self.amounts), **{key: getattr(self, key) for key in keys}}


@dataclass(frozen=True)
class PruneResult:
    """The runs of one pruning."""

    run: Run
    before_training: Run | None = None
    """The pruned model before it was trained again; None if it was not."""


def prune(
    run: Run | str | Path,
    settings: PruneSettings,
    out: str | Path,
    *,
    cache: Path | None = None,
    watcher: Watcher | None = None,
) -> PruneResult:
    """Prunes the model of a run into a new run folder, and trains it again if `settings.steps` is set."""
    run, out = opened(run), Path(out)
    refuse_quantised(run)
    refuse_occupied_folders(out, settings)
    amounts, how = settings.parsed(), {"how": "prune", **settings.to_dict()}
    importance, source, start = importance_of(settings.by, settings.seed), run, None
    keeps_zeros = any(amount.what == WEIGHTS for amount in amounts)
    for number in range(1, settings.rounds + 1):
        last = number == settings.rounds
        evidence = Evidence(source, cache, settings.seed)
        spec, model = _pruned(source, amounts, number / settings.rounds, importance, evidence, settings.scope)
        stage = out if not settings.steps else _stage(out, f"pruned-{number}")
        start = write_run(run, stage, spec, model, {**how, "round": number})
        if not settings.steps:
            return PruneResult(start)
        target = out if last else _stage(out, f"trained-{number}")
        source = train(
            tuning_recipe(run, start, settings.steps // settings.rounds, keeps_zeros=keeps_zeros),
            *settings.overrides, out=target, init_from=start, cache=cache, watcher=watcher,
        )  # fmt: skip
        note_origin(target, run, how)
    return PruneResult(source, start)


def _pruned(
    run: Run, amounts: Sequence[PruneAmount], part: float, importance: Importance, evidence: Evidence, scope: Scope
) -> tuple[ModelSpec, Model]:
    """The pruned model of a run; `part`: the rounds so far as a part of all of them."""
    spec, model = run.recipe.model, run.model()
    for amount in amounts:
        if amount.what == WEIGHTS:  # the same share of what is left in every round
            set_to_zero(model, 1 - (1 - amount.share) ** part, importance, evidence, scope)
        else:
            spec, model = remove(spec, model, amount, importance, evidence)
    return spec, model


def tuning_recipe(source: Run, start: Run, steps: int, *, keeps_zeros: bool) -> Recipe:
    """The recipe of the run that was pruned, with the smaller model and another number of updates."""
    recipe = replace(source_recipe(source), model=start.recipe.model)
    if recipe.data is None:
        raise SpecError(f"--steps {steps}: {source.folder} was imported, so it has no data to train on. Leave it out, "
                        f"then: anyformer train DATA init_from={start.folder}")  # fmt: skip
    recipe = with_steps(recipe, max(1, steps))
    return replace(recipe, optimizer=keeping_zeros(recipe.optimizer)) if keeps_zeros else recipe


def refuse_occupied_folders(out: Path, settings: PruneSettings) -> None:
    """Raises SpecError if a folder that pruning would write to is occupied, before anything is written."""
    refuse_occupied(out)
    stages = _stage(out, "")
    if settings.steps and stages.exists():
        other = f"{out}-2"
        raise SpecError(f"{stages}: has the intermediate runs of another pruning. Delete it, or use another folder: "
                        f"out={other!r} (--out {quote(other)}).")  # fmt: skip


def _stage(out: Path, name: str) -> Path:
    """Folder of an intermediate run, beside the final one."""
    return out.with_name(f"{out.name}-stages") / name
