"""A run from its target to its folder: prepares the data, trains, evaluates and saves; or resumes a run."""

import errno
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from anyformer.core import ModelSpec, PartSpec, Spec
from anyformer.core.readable_numbers import counted, part
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.data.sources.named_source import relocated
from anyformer.disk import CHECKPOINTS, ENVIRONMENT, RECIPE, SOURCES, is_run, similar_names
from anyformer.errors import (
    AnyformerError,
    CheckpointError,
    DataError,
    Interrupted,
    ResourceError,
    SpecError,
    memory_errors,
    of_os_error,
)
from anyformer.training.distributed import World, joined
from anyformer.training.loop.budget import OVERFITTING, Budget, Moments, Observer, Progress
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers import (
    Evaluating,
    Sampling,
    Saving,
    Trouble,
    check_room,
    restore,
    start_from,
    tensors_of,
)
from anyformer.training.recipes.python_values import Target
from anyformer.training.recipes.recipe import Loaded, Recipe, decode_recipe, load_recipe
from anyformer.training.recipes.resolve import check_model, data_of, draft, name_of, provisional, settle
from anyformer.training.recipes.toml_layers import TomlLayers
from anyformer.training.runs import checkpoint
from anyformer.training.runs.resuming import EXTENDABLE, refuse_other_rates, refuse_other_settings, refuse_untrained
from anyformer.training.runs.run_folder import Metrics, RunFolder, Sinks, environment, locked, refuse_occupied
from anyformer.training.runs.starting import StartingPoint

RUNS = Path("runs")
MOST_LOST = 0.01
"""Share of the training tokens that long texts may lose without a message."""
WATCHED = ("torch", "device", "threads", "processes")
"""Keys of environment.json that may change the results of a run; a difference on resume is logged."""
OUTPUT_CLOSED = 141
"""Exit code of a run whose output was closed; that of a command that SIGPIPE ends."""
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_REASONS = {**{128 + number: name for number, name in _NAMES.items()}, OUTPUT_CLOSED: "the output was closed"}
"""Exit code of an interrupted run -> the reason in words."""


class Interruption:
    """Ctrl-C and SIGTERM: inside the context, a first signal is only recorded, so that the current step is finished
    and saved; a second one stops at once. Outside the main thread Python cannot install handlers: does nothing."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _NAMES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number


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
        """Trains until the budget is spent, or a signal or the watcher interrupts; returns the folder."""
        self.watcher.began(self)
        try:
            with memory_errors():
                self._train()
        except Interrupted:
            raise
        except AnyformerError as error:
            self.folder.event("failed", step=self.trainer.progress.step, why=str(error))
            raise
        return self.folder.path

    def _train(self) -> None:
        recipe, finished, world = self.trainer.recipe, self.trainer.finished, self.trainer.world
        saving = Saving(self.trainer, self.folder, Moments(recipe.checkpoint.every, finished))
        observers: list[Observer] = [
            Metrics(self.folder, Moments(recipe.log.every, finished)),
            Trouble(self.trainer, self.folder),
            *self.watcher.stepped(self),
            Evaluating(self.trainer, self.folder, Moments(recipe.evaluate.every, finished), self.watcher.evaluated),
            Sampling(self.trainer, self.folder, Moments(recipe.sample.every, finished), self.watcher.log),
            saving,
            Sinks(self.folder, recipe.log.sinks if world.leads else (), saving.when, self.watcher.log, self.start),
        ]
        with Interruption() as interruption:
            for step in self.trainer.steps():
                closed = 0
                for observer in observers:
                    try:
                        observer(step)
                    except BrokenPipeError:  # the reader of the output has ended, as in `anyformer train ... | head`
                        closed = OUTPUT_CLOSED
                code = 128 + interruption.caught if interruption.caught else closed
                code = int(world.maximum(code))  # one rank stops all ranks
                if code and (closed or not finished()):
                    saving.save()
                    self.folder.event("interrupted", step=step.number)
                    text = f"{_REASONS[code]}: saved at step {step.number}."
                    raise Interrupted(f"{text} Go on with: anyformer train {self.folder.path} --resume", code)
        progress, budget = self.trainer.progress, self.trainer.budget
        if budget.spent(progress.step, progress.wall_s):
            self.folder.event(checkpoint.FINISHED, step=progress.step)
        else:
            why = _overfitting(progress, budget)
            self.folder.event(checkpoint.FINISHED, step=progress.step, why=why)
            self.watcher.log(f"{why} To train on: anyformer train {self.folder.path} --resume train.stop=0")


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `train`, as its two ways (a new run, a resumed run) read them."""

    target: Target
    overrides: Sequence[str]
    values: TomlLayers
    out: str | Path | None
    cache: str | Path | None

    @property
    def run_folder(self) -> Path | None:
        """The target, if it is a run folder."""
        folder = None if isinstance(self.target, Spec) else Path(self.target)
        return folder if folder is not None and is_run(folder) else None

    def draft(self) -> TomlLayers:
        """The recipe as far as it is known before the data are read."""
        folder = self.run_folder
        return draft(self.target if folder is None else folder / RECIPE, self.overrides, self.values)

    def resumed(self) -> TomlLayers:
        """The recipe of a run to resume. A path that is neither a run nor data is refused as a run, not as data."""
        try:
            return self.draft()
        except DataError:
            path = Path(self.out) if self.out else RUNS / Path(str(self.target)).name
            if is_run(path):
                raise
            if not isinstance(self.target, Spec) and (Path(self.target) / RECIPE).is_file():
                checkpoint.refuse_other_folder(Path(self.target))
            other = "" if str(path) == str(self.target) else f", and {path} is none either"
            guess = similar_names(Path(str(self.target)))
            raise SpecError(f"{self.target}: is no run to resume{other}.{guess} All runs: anyformer runs") from None

    def path(self, document: TomlLayers) -> Path:
        """Where the run is written."""
        return Path(self.out) if self.out else RUNS / name_of(self.target, document)


def train_folder(
    request: TrainRequest,
    resume: bool = False,
    watcher: Watcher | None = None,
    finish: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Trains a new run or continues an interrupted one; returns its folder. `finish` is called with it on rank 0."""
    try:
        with joined() as world, memory_errors():
            watcher = watcher if watcher and world.leads else Watcher()
            folder = _resume(request, watcher, world) if resume else _begin(request, watcher, world)
            if world.leads:
                finish(folder)
            return folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            advice = "Free some space, then continue with resume=True (--resume)"
            raise ResourceError(f"{where}the disk is full. {advice}.") from None
        raise of_os_error(error) or error from None


def _begin(request: TrainRequest, watcher: Watcher, world: World) -> Path:
    with ExitStack() as held:
        with world.in_turn():
            if existing := request.run_folder:
                advice = f"Continue it with resume=True: anyformer train {existing} --resume"
                raise SpecError(f"{existing}: is a run folder. {advice}")
            document = request.draft()
            early = decode_recipe(provisional(document), name_of(request.target, document))
            check_model(early.recipe)
            objective = early.recipe.objective
            if early.recipe.init_from:
                StartingPoint.open(early.recipe.init_from)  # before the data are read
            for source in objective.pretrained.values() if objective else ():
                checkpoint.refuse_other_folder(Path(source))
            here, path = world.on(early.recipe.train.device), request.path(document)
            if world.leads:
                refuse_occupied(path, resumes=True)
                held.enter_context(locked(path))
            watcher.log("reading the data")
            prepared = prepared_for(data_of(document), request.cache, watcher.log)
            loaded = settle(document, prepared, early.name)
        trainer = Trainer(loaded.recipe, prepared, here)
        copied = start_from(trainer, loaded.recipe.init_from, watcher.log)
        with world.in_turn():
            check_room(trainer, path)
            facts = {**environment(prepared, here), "execution": trainer.execution}
            folder = RunFolder.create(path, loaded, prepared, facts) if world.leads else RunFolder(path, leads=False)
        folder.event("started", steps=trainer.budget.steps, taken_over=copied)
        for remark in (*remarks_on_model(loaded.recipe.model), *remarks_on_data(prepared, loaded.recipe)):
            watcher.log(remark)
        try:
            return Session(loaded, trainer, folder, watcher).go()
        except ResourceError:
            folder.remove_unless_saved()
            raise


def _resume(request: TrainRequest, watcher: Watcher, world: World) -> Path:
    with ExitStack() as held:
        with world.in_turn():
            document = request.resumed()
            path = request.run_folder or request.path(document)
            checkpoint.refuse_nothing_to_resume(path)
            if world.leads:
                held.enter_context(locked(path))
            stored = load_recipe(path / RECIPE)
            data, stored_data = data_of(document), stored.recipe.data
            refuse_untrained(path, stored.recipe)
            assert stored_data is not None
            refuse_other_settings({f"data.{key}": pair for key, pair in stored_data.diff(data).items()}, path)
            folder = RunFolder(path, leads=world.leads)
            began = checkpoint.read_facts(path / ENVIRONMENT)
            data = relocated(data, began.get("began_in"))
            fingerprint = data.fingerprint()  # hashed again: a run continues with exactly the data it began with
            if fingerprint != (before := began["data_fingerprint"]):
                raise DataError(
                    f"the data have changed since {path} began: fingerprint {before[:16]} then, {fingerprint[:16]} "
                    f"now. Restore the old data, or start another run: out=NAME (--out NAME)."
                )
            prepared = prepared_for(data, request.cache, watcher.log, fingerprint)
            loaded = settle(document, prepared, stored.name)
            differences = replace(stored.recipe, name=None).diff(replace(loaded.recipe, name=None))
            extended = [key for key in EXTENDABLE if differences.pop(key, None)]
            refuse_other_settings(differences, path)
            here = world.on(loaded.recipe.train.device)
        if not extended and world.broadcast(lambda: checkpoint.is_complete(path)):
            step = checkpoint.load_state(checkpoint.newest_checkpoint(path))["progress"]["step"]
            watcher.log(f"{path}: already complete, at step {step}.")
            return path
        now = environment(prepared, here)
        if changed := [f"{key} {began.get(key)} then, {now[key]} now" for key in WATCHED if began.get(key) != now[key]]:
            watcher.log(f"the results may differ from those of an uninterrupted run: {'; '.join(changed)}.")
        # A run that goes on elsewhere, or began with an older version, chooses anew whether to compile.
        execution = began.get("execution") if began["device"] == now["device"] else None
        trainer = Trainer(loaded.recipe, prepared, here, execution)
        step = _restore_newest(trainer, path, watcher)
        refuse_other_rates(stored.recipe, trainer, path)
        if trainer.finished():
            hint = "" if step >= (trainer.budget.steps or 0) else " It stopped early; to train on, add train.stop=0."
            watcher.log(f"{path}: already complete, at step {step}.{hint}")
            return path
        with world.in_turn():
            check_room(trainer, path)
            if extended:
                folder.extend(_extended(stored, loaded, extended, path), step)
        folder.forget_after(step)
        folder.event("resumed", step=step, steps=trainer.budget.steps)
        watcher.log(f"{path}: resuming after step {step}.")
        return Session(loaded, trainer, folder, watcher, step).go()


def _extended(stored: Loaded, loaded: Loaded, keys: Sequence[str], path: Path) -> Loaded:
    """The stored recipe with the new values of some keys."""
    origins = {**checkpoint.read_facts(path / SOURCES), **{key: loaded.origins[key] for key in keys}}
    train = replace(stored.recipe.train, steps=loaded.recipe.train.steps, stop=loaded.recipe.train.stop)
    return Loaded(stored.name, replace(stored.recipe, train=train), origins)


def _overfitting(progress: Progress, budget: Budget) -> str:
    """Why a run stopped before its budget was spent."""
    of = "" if budget.steps is None else f" of {budget.steps:,}"
    return (
        f"stopped early, at step {progress.step:,}{of}: the validation loss was more than {OVERFITTING:.0%} above its "
        f"lowest value in {counted(progress.worse, 'evaluations')} in a row. The best checkpoint is that of step "
        f"{progress.best_step:,}, with a validation loss of {progress.best:.4f}."
    )


def remarks_on_model(model: ModelSpec) -> Iterator[str]:
    """What may surprise the user about the model: an encoder that is never read."""
    parts = [spec for _, spec in model.walk() if isinstance(spec, PartSpec)]
    if model.needs_source and not any(part.reads_source for part in parts):
        advice = "Add a branch with Cross(part=Attention(...)) (part.kind=cross) to the blocks of the decoder."
        yield f"no part of the decoder reads the encoder, so that the output does not depend on the source. {advice}"


def remarks_on_data(prepared: Prepared, recipe: Recipe) -> Iterator[str]:
    """What may surprise the user about the data: removed copies, texts that were cut, no validation, fewer tokens
    than a batch."""
    counts, batch_tokens = prepared.counts["train"], recipe.train.batch_tokens
    tokens, lost = counts.get("tokens", 0), counts.get("lost", 0)
    if copies := prepared.manifest.facts["copies_of_held_out_texts"]:
        texts = "1 training text is a copy" if copies == 1 else f"{copies:,} training texts are copies"
        yield f"{texts} of validation or test texts, and left out. More: anyformer data"
    for warning in prepared.manifest.facts["warnings"]:
        yield f"{warning} More: anyformer data"
    everything = tokens + counts.get("source", 0) + lost
    if lost > MOST_LOST * everything:
        text = f"{part(lost, everything, 'training tokens')} are left out: {counted(counts['long'], 'texts')} longer"
        other = ", or use data.packing=pack, which reads texts whole" if prepared.contents.plain else ""
        yield f"{text} than data.context={prepared.context} lost the end. Raise it{other}."
    if not prepared.counts.get("valid", {}).get("samples"):
        yield "there is no validation data, so overfitting cannot be seen. Raise data.valid, or use more data."
    if batch_tokens > tokens:
        text = f"train.batch_tokens={batch_tokens:,} is more than the {tokens:,} tokens to train on"
        yield f"{text}: each update reads all of them."


def _restore_newest(trainer: Trainer, folder: Path, watcher: Watcher) -> int:
    """Restores the newest intact checkpoint, or starts at step 0 if the run was never saved. Returns the step."""
    world, complaints = trainer.world, list[str]()
    for path in world.broadcast(lambda: checkpoint.newest(folder / CHECKPOINTS)):
        complaint = world.broadcast(partial(checkpoint.complaint, path))
        try:
            if complaint is None:
                restore(trainer, checkpoint.read(path, tensors_of(trainer)), checkpoint.load_state(path))
                if complaints:
                    watcher.log(f"{complaints[0]} Going back to the checkpoint before it: {path.name}.")
                return trainer.progress.step
        except CheckpointError as error:
            complaint = f"{path}: {error}"
        complaints.append(complaint)
    if complaints:
        raise checkpoint.no_whole_checkpoint(folder, complaints)
    start_from(trainer, trainer.recipe.init_from, watcher.log)
    return 0
