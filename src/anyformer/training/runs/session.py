"""One run from a target to a folder: plan, prepare, train, watch, save; or go on where it was interrupted."""

import errno
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.errors import AnyformerError, CheckpointError, DataError, Interrupted, Problem, ResourceError, SpecError
from anyformer.training.distributed.world import World, joined
from anyformer.training.loop.step import Observer
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.metrics_log import Metrics
from anyformer.training.observers.moments import Moments
from anyformer.training.observers.periodic_evaluation import Evaluating
from anyformer.training.observers.sampling import Sampling
from anyformer.training.observers.saving import Saving
from anyformer.training.observers.sinks import Sinks
from anyformer.training.observers.trouble import Trouble
from anyformer.training.recipes.recipe import Loaded, decode_recipe, load_recipe
from anyformer.training.recipes.resolve import data_of, draft, name_of, provisional, settle
from anyformer.training.runs import checkpoint
from anyformer.training.runs.data_cache import prepared_for
from anyformer.training.runs.init_from import start_from
from anyformer.training.runs.run import RECIPE, Run
from anyformer.training.runs.run_folder import RunFolder, alone, environment, refuse_occupied
from anyformer.training.runs.signals import Interruption
from anyformer.training.runs.snapshots import put_back, tensors_of

RUNS = Path("runs")
Out = str | Path | None
FREE_TO_CHANGE = ("name", "train.workers", "train.micro_batch", "train.parallel", "checkpoint.", "log.", "sample.")
"""Keys that change no number of a run: they may differ when it goes on."""
WATCHED = ("torch", "device", "threads", "processes")
"""What the numbers of a run depend on besides its recipe."""


class Watcher:
    """What somebody outside wants to hear about; does nothing by itself."""

    def began(self, session: "Session") -> None:
        """Before the first step."""

    def stepped(self, session: "Session") -> Sequence[Observer]:
        """Observers of every step."""
        return ()

    def evaluated(self, step: int, loss: float) -> None:
        """After each validation."""

    def said(self, text: str) -> None:
        """A word about what is going on."""


@dataclass
class Session:
    """All that is at work in a run."""

    loaded: Loaded
    trainer: Trainer
    folder: RunFolder
    watcher: Watcher
    start: int = 0

    def go(self) -> Run:
        """Trains until the budget is spent or somebody interrupts."""
        recipe, budget, world = self.trainer.recipe, self.trainer.budget, self.trainer.world
        saving = Saving(self.trainer, self.folder, Moments(recipe.checkpoint.every, budget))
        observers: list[Observer] = [
            Metrics(self.folder, Moments(recipe.log.every, budget)),
            Trouble(self.trainer, self.folder),
            *self.watcher.stepped(self),
            Evaluating(self.trainer, self.folder, Moments(recipe.evaluate.every, budget), self.watcher.evaluated),
            Sampling(self.trainer, self.folder, Moments(recipe.sample.every, budget), self.watcher.said),
            saving,
            Sinks(self.folder, recipe.log.sinks if world.leads else (), saving.when, self.watcher.said, self.start),
        ]
        with Interruption() as interruption:
            for step in self.trainer.steps():
                for observer in observers:
                    observer(step)
                caught = int(world.most(interruption.caught or 0))  # whoever was told to stop, all do
                if caught and not saving.when.is_last(step):
                    saving.save()
                    self.folder.event("interrupted", step=step.number)
                    raise interruption.error(caught, str(self.folder.path), step.number)
        self.folder.event("finished", step=self.trainer.progress.step)
        return Run(self.folder.path)


def train(
    target: str | Path,
    *overrides: str,
    out: str | Path | None = None,
    resume: bool = False,
    cache: Path | None = None,
    watcher: Watcher | None = None,
    init_from: Run | str | Path | None = None,
) -> Run:
    """Trains what a recipe, a preset or a path to data says: `train("notes.txt", "train.steps=100")`.

    `init_from`: a run whose weights, wherever they fit, and whose tokenizer it starts with, if nobody names another.
    `resume` goes on with a run that was interrupted; `cache` is where prepared data are kept. Under torchrun, all
    processes share the work; the first one alone writes the folder and tells the watcher.
    """
    if init_from is not None:
        source = init_from.folder if isinstance(init_from, Run) else Path(init_from)
        overrides = (*overrides, f"init_from={json.dumps(str(source))}")
    try:
        with joined() as world:
            watcher = watcher if watcher and world.leads else Watcher()
            act = _resume if resume else _begin
            return act(str(target), overrides, out, cache, watcher, world)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            raise ResourceError(f"{where}the disk is full. Free some space, then go on with --resume.") from None
        raise


def _begin(target: str, overrides: Sequence[str], out: Out, cache: Path | None, watcher: Watcher, world: World) -> Run:
    with ExitStack() as held:
        with world.in_turn():
            if (Path(target) / RECIPE).is_file():
                raise SpecError(f"{target}: is a run folder. Go on with it: anyformer train {target} --resume")
            document = draft(target, overrides)
            early = decode_recipe(provisional(document), name_of(target, document))
            if early.recipe.init_from:
                Run.open(early.recipe.init_from)  # says so before anything is read
            here, path = world.on(early.recipe.train.device), Path(out) if out else RUNS / early.name
            if world.leads:
                refuse_occupied(path)
                held.enter_context(alone(path))
            watcher.said("reading the data")
            prepared = prepared_for(data_of(document), cache)
            loaded = settle(document, prepared, early.name)
        trainer = Trainer(loaded.recipe, prepared, here)
        taken = start_from(trainer, loaded.recipe.init_from)
        with world.in_turn():
            folder = RunFolder.create(path, loaded, prepared, here) if world.leads else RunFolder(path, mine=False)
        folder.event("started", steps=trainer.budget.steps, taken_over=taken)
        return _go(Session(loaded, trainer, folder, watcher))


def _resume(target: str, overrides: Sequence[str], out: Out, cache: Path | None, watcher: Watcher, world: World) -> Run:
    with ExitStack() as held:
        with world.in_turn():
            path = _run_folder(target, overrides, out)
            if world.leads:
                held.enter_context(alone(path))
            run, stored = Run.open(path), load_recipe(path / RECIPE)
            document = draft(path / RECIPE if (Path(target) / RECIPE).is_file() else target, overrides)
            data, known = data_of(document), stored.recipe.data
            assert known is not None
            _refuse({f"data.{key}": pair for key, pair in known.diff(data).items()}, path)
            folder = RunFolder(path, mine=world.leads)
            fingerprint = data.fingerprint()  # hashed again: a run must go on with exactly the data that it began with
            _check_data(folder, fingerprint)
            prepared = prepared_for(data, cache, fingerprint)
            loaded = settle(document, prepared, stored.name)
            _refuse(replace(stored.recipe, name=None).diff(replace(loaded.recipe, name=None)), path)
            here = world.on(loaded.recipe.train.device)
        if world.told(lambda: run.complete):
            watcher.said(f"{path}: already complete, at step {run.state['progress']['step']}.")
            return run
        _notice_changes(folder.environment(), environment(prepared, here), watcher)
        trainer = Trainer(loaded.recipe, prepared, here)
        step = _put_back(trainer, run, watcher)
        folder.forget_after(step)
        folder.event("resumed", step=step)
        watcher.said(f"{path}: going on after step {step}.")
        return _go(Session(loaded, trainer, folder, watcher, step))


def _go(session: Session) -> Run:
    session.watcher.began(session)
    try:
        return session.go()
    except Interrupted:
        raise
    except AnyformerError as error:
        session.folder.event("failed", step=session.trainer.progress.step, why=str(error))
        raise


def _run_folder(target: str, overrides: Sequence[str], out: Out) -> Path:
    if (Path(target) / RECIPE).is_file():
        return Path(target)
    path = Path(out) if out else RUNS / name_of(target, draft(target, overrides))
    if not (path / RECIPE).is_file():
        raise SpecError(f"{path}: there is no run to go on with. Leave --resume out to start it.")
    return path


def _refuse(differences: Mapping[str, tuple[Any, Any]], path: Path) -> None:
    """Lists the keys that would make it another run."""
    wrong = {key: pair for key, pair in differences.items() if not key.startswith(FREE_TO_CHANGE)}
    if wrong:
        listed = [Problem(key, f"{old!r} in {path}, {new!r} now.") for key, (old, new) in wrong.items()]
        raise SpecError(
            problems=[*listed, Problem("", "a run goes on with its own recipe. Start another: --out NAME.")]
        )


def _check_data(folder: RunFolder, now: str) -> None:
    before = folder.environment()["data_fingerprint"]
    if now != before:
        raise DataError(
            f"the data have changed since {folder.path} began: fingerprint {before[:16]} then, {now[:16]} now. "
            f"Bring the old data back, or start another run: --out NAME."
        )


def _notice_changes(before: Mapping[str, Any], now: Mapping[str, Any], watcher: Watcher) -> None:
    changed = [f"{key} {before.get(key)} then, {now[key]} now" for key in WATCHED if before.get(key) != now[key]]
    if changed:
        watcher.said(f"the numbers may differ from an uninterrupted run: {'; '.join(changed)}.")


def _put_back(trainer: Trainer, run: Run, watcher: Watcher) -> int:
    """The newest checkpoint that is whole; where there is none, the beginning."""
    world = trainer.world
    for path in world.told(lambda: run.checkpoints):
        complaint = world.told(partial(checkpoint.complaint, path))
        try:
            if complaint is None:
                put_back(trainer, checkpoint.read(path, tensors_of(trainer)))
                return trainer.progress.step
        except CheckpointError as error:
            complaint = str(error)
        watcher.said(f"{complaint} Going back to the checkpoint before it.")
    start_from(trainer, trainer.recipe.init_from)
    return 0
