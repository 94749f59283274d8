"""A run from its target to its folder: prepares the data, trains, evaluates and saves; or resumes a run."""

import errno
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.core import Spec
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.sources.named_source import relocated
from anyformer.disk import CHECKPOINTS, RECIPE
from anyformer.errors import (
    AnyformerError,
    CheckpointError,
    DataError,
    Interrupted,
    Problem,
    ResourceError,
    SpecError,
    memory_errors,
    of_os_error,
)
from anyformer.training.distributed.world import World, joined
from anyformer.training.loop.budget import Observer
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.metrics_log import Metrics, Moments, Sinks, Trouble
from anyformer.training.observers.sampling import Evaluating, Sampling
from anyformer.training.observers.saving import Saving
from anyformer.training.recipes.recipe import Loaded, Recipe, decode_recipe, load_recipe
from anyformer.training.recipes.resolve import (
    Target,
    check_model,
    data_of,
    draft,
    name_of,
    provisional,
    settle,
)
from anyformer.training.recipes.toml_layers import TomlLayers
from anyformer.training.runs import checkpoint
from anyformer.training.runs.data_cache import prepared_for
from anyformer.training.runs.run_folder import (
    RunFolder,
    alone,
    check_room,
    environment,
    read_environment,
    refuse_occupied,
)
from anyformer.training.runs.run_weights import (
    is_complete,
    newest_checkpoint,
    no_whole_checkpoint,
    refuse_other_folder,
)
from anyformer.training.runs.signals import Interruption
from anyformer.training.runs.snapshots import put_back, start_from, tensors_of

RUNS = Path("runs")
FREE_TO_CHANGE = ("name", "train.workers", "train.micro_batch", "train.parallel", "checkpoint.", "log.", "sample.")
"""Keys that do not change the results of a run: they may differ when it is resumed."""
WATCHED = ("torch", "device", "threads", "processes")
"""Keys of environment.json that may change the results of a run; a difference on resume is logged."""


class Watcher:
    """Callbacks of a run; the base class does nothing."""

    def began(self, session: "Session") -> None:
        """Called before the first step."""

    def stepped(self, session: "Session") -> Sequence[Observer]:
        """Additional observers, which are called after every step."""
        return ()

    def evaluated(self, step: int, loss: float) -> None:
        """Called after each validation."""

    def log(self, text: str) -> None:
        """Called with a message for the user."""


@dataclass
class Session:
    """The objects of a run that is being trained."""

    loaded: Loaded
    trainer: Trainer
    folder: RunFolder
    watcher: Watcher
    start: int = 0

    def go(self) -> Path:
        """Trains until the budget is spent or a signal interrupts."""
        recipe, budget, world = self.trainer.recipe, self.trainer.budget, self.trainer.world
        saving = Saving(self.trainer, self.folder, Moments(recipe.checkpoint.every, budget))
        observers: list[Observer] = [
            Metrics(self.folder, Moments(recipe.log.every, budget)),
            Trouble(self.trainer, self.folder),
            *self.watcher.stepped(self),
            Evaluating(self.trainer, self.folder, Moments(recipe.evaluate.every, budget), self.watcher.evaluated),
            Sampling(self.trainer, self.folder, Moments(recipe.sample.every, budget), self.watcher.log),
            saving,
            Sinks(self.folder, recipe.log.sinks if world.leads else (), saving.when, self.watcher.log, self.start),
        ]
        with Interruption() as interruption:
            for step in self.trainer.steps():
                for observer in observers:
                    observer(step)
                caught = int(world.maximum(interruption.caught or 0))  # a signal to one rank stops all ranks
                if caught and not saving.when.is_last(step):
                    saving.save()
                    self.folder.event("interrupted", step=step.number)
                    raise interruption.error(caught, str(self.folder.path), step.number)
        self.folder.event("finished", step=self.trainer.progress.step)
        return self.folder.path


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `train`, as its two ways (a new run, a resumed run) read them."""

    target: Target
    overrides: Sequence[str]
    values: TomlLayers
    out: str | Path | None
    cache: Path | None

    @property
    def run_folder(self) -> Path | None:
        """The target, if it is a run folder."""
        if isinstance(self.target, Spec) or not (Path(self.target) / RECIPE).is_file():
            return None
        return Path(self.target)

    def draft(self) -> TomlLayers:
        """The recipe as far as it is known before the data are read."""
        folder = self.run_folder
        return draft(self.target if folder is None else folder / RECIPE, self.overrides, self.values)

    def path(self, document: TomlLayers) -> Path:
        """Where the run is written."""
        return Path(self.out) if self.out else RUNS / name_of(self.target, document)


def train_folder(request: TrainRequest, resume: bool = False, watcher: Watcher | None = None) -> Path:
    """Trains a new run or continues an interrupted one; returns its folder."""
    try:
        with joined() as world, memory_errors():
            watcher = watcher if watcher and world.leads else Watcher()
            return _resume(request, watcher, world) if resume else _begin(request, watcher, world)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            raise ResourceError(f"{where}the disk is full. Free some space, then continue with --resume.") from None
        raise of_os_error(error) or error from None


def _begin(request: TrainRequest, watcher: Watcher, world: World) -> Path:
    with ExitStack() as held:
        with world.in_turn():
            if existing := request.run_folder:
                raise SpecError(f"{existing}: is a run folder. Continue it: anyformer train {existing} --resume")
            document = request.draft()
            early = decode_recipe(provisional(document), name_of(request.target, document))
            check_model(early.recipe)
            objective = early.recipe.objective
            for source in (early.recipe.init_from, *(objective.pretrained.values() if objective else ())):
                if source:
                    refuse_other_folder(Path(source))  # before the data are read
            here, path = world.on(early.recipe.train.device), request.path(document)
            if world.leads:
                refuse_occupied(path)
                held.enter_context(alone(path))
            watcher.log("reading the data")
            prepared = prepared_for(data_of(document), request.cache, watcher.log)
            loaded = settle(document, prepared, early.name)
        trainer = Trainer(loaded.recipe, prepared, here)
        copied = start_from(trainer, loaded.recipe.init_from)
        with world.in_turn():
            check_room(trainer, path)
            folder = RunFolder.create(path, loaded, prepared, here) if world.leads else RunFolder(path, mine=False)
        folder.event("started", steps=trainer.budget.steps, taken_over=copied)
        _mention_data(prepared, loaded.recipe, watcher)
        try:
            return _go(Session(loaded, trainer, folder, watcher))
        except ResourceError:
            folder.remove_unless_saved()
            raise


def _resume(request: TrainRequest, watcher: Watcher, world: World) -> Path:
    with ExitStack() as held:
        with world.in_turn():
            document = request.draft()
            path = request.run_folder or request.path(document)
            if not (path / RECIPE).is_file():
                raise SpecError(f"{path}: there is no run to resume. Leave out --resume to start one.")
            if world.leads:
                held.enter_context(alone(path))
            stored = load_recipe(path / RECIPE)
            data, stored_data = data_of(document), stored.recipe.data
            assert stored_data is not None
            _refuse({f"data.{key}": pair for key, pair in stored_data.diff(data).items()}, path)
            folder = RunFolder(path, mine=world.leads)
            data = relocated(data, read_environment(path).get("began_in"))
            fingerprint = data.fingerprint()  # hashed again: a run continues with exactly the data it began with
            _check_data(path, fingerprint)
            prepared = prepared_for(data, request.cache, watcher.log, fingerprint)
            loaded = settle(document, prepared, stored.name)
            _refuse(replace(stored.recipe, name=None).diff(replace(loaded.recipe, name=None)), path)
            here = world.on(loaded.recipe.train.device)
        if world.broadcast(lambda: is_complete(path)):
            step = checkpoint.load_state(newest_checkpoint(path))["progress"]["step"]
            watcher.log(f"{path}: already complete, at step {step}.")
            return path
        _notice_changes(read_environment(path), environment(prepared, here), watcher)
        trainer = Trainer(loaded.recipe, prepared, here)
        step = _put_back(trainer, path, watcher)
        with world.in_turn():
            check_room(trainer, path)
        folder.forget_after(step)
        folder.event("resumed", step=step)
        watcher.log(f"{path}: resuming after step {step}.")
        return _go(Session(loaded, trainer, folder, watcher, step))


def _mention_data(prepared: Prepared, recipe: Recipe, watcher: Watcher) -> None:
    """Logs what may surprise the user about the data: removed copies, no validation, fewer tokens than a batch."""
    copies, tokens = prepared.manifest.facts["copies_of_held_out_texts"], prepared.counts["train"].get("tokens", 0)
    if copies:
        texts = "1 training text is a copy" if copies == 1 else f"{copies:,} training texts are copies"
        watcher.log(f"{texts} of validation or test texts, and left out. More: anyformer data")
    if not prepared.counts.get("valid", {}).get("samples"):
        watcher.log("there is no validation data, so overfitting cannot be seen. Raise data.valid, or use more data.")
    if recipe.train.batch_tokens > tokens:
        watcher.log(
            f"train.batch_tokens={recipe.train.batch_tokens:,} is more than the {tokens:,} tokens to train on: "
            f"each update reads all of them."
        )


def _go(session: Session) -> Path:
    session.watcher.began(session)
    try:
        with memory_errors():
            return session.go()
    except Interrupted:
        raise
    except AnyformerError as error:
        session.folder.event("failed", step=session.trainer.progress.step, why=str(error))
        raise


def _refuse(differences: Mapping[str, tuple[Any, Any]], path: Path) -> None:
    """Raises SpecError with the keys that may not change when a run is resumed."""
    wrong = {key: pair for key, pair in differences.items() if not key.startswith(FREE_TO_CHANGE)}
    if wrong:
        listed = [Problem(key, f"{old!r} in {path}, {new!r} now.") for key, (old, new) in wrong.items()]
        raise SpecError(
            problems=[*listed, Problem("", "a run is resumed with its own recipe. Start another run: --out NAME.")]
        )


def _check_data(path: Path, now: str) -> None:
    before = read_environment(path)["data_fingerprint"]
    if now != before:
        raise DataError(
            f"the data have changed since {path} began: fingerprint {before[:16]} then, {now[:16]} now. "
            f"Restore the old data, or start another run: --out NAME."
        )


def _notice_changes(before: Mapping[str, Any], now: Mapping[str, Any], watcher: Watcher) -> None:
    changed = [f"{key} {before.get(key)} then, {now[key]} now" for key in WATCHED if before.get(key) != now[key]]
    if changed:
        watcher.log(f"the results may differ from those of an uninterrupted run: {'; '.join(changed)}.")


def _put_back(trainer: Trainer, folder: Path, watcher: Watcher) -> int:
    """Restores the newest intact checkpoint, or starts at step 0 if the run was never saved. Returns the step."""
    world, complaints = trainer.world, list[str]()
    for path in world.broadcast(lambda: [*checkpoint.newest(folder / CHECKPOINTS)]):
        complaint = world.broadcast(partial(checkpoint.complaint, path))
        try:
            if complaint is None:
                put_back(trainer, checkpoint.read(path, tensors_of(trainer)))
                if complaints:
                    watcher.log(f"{complaints[0]} Going back to the checkpoint before it: {path.name}.")
                return trainer.progress.step
        except CheckpointError as error:
            complaint = f"{path}: {error}"
        complaints.append(complaint)
    if complaints:
        raise no_whole_checkpoint(folder, complaints)
    start_from(trainer, trainer.recipe.init_from)
    return 0
