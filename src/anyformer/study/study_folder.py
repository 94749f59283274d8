"""A study on the disk (docs/formats.md): study.toml, arms/NAME.toml, and a run folder for each arm and seed."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tomli_w

from anyformer.core import decode
from anyformer.core.fields import changed_leaves, leaves
from anyformer.data.sources.named_source import relocated_path
from anyformer.disk import RECIPE, OpenedFolder, is_run_of_study, last_event, write, write_atomically
from anyformer.disk import STUDY as STUDY
from anyformer.errors import CheckpointError, DataError, Problem, SpecError
from anyformer.study.planning import Arm, Budgets
from anyformer.study.study import METRIC, Study, StudySpec
from anyformer.study.study_record import register, registration_of
from anyformer.training.recipes.recipe import Recipe, decode_recipe
from anyformer.training.recipes.resolve import draft, provisional
from anyformer.training.runs.checkpoint import is_complete, read_facts

PLAN, ARMS, TUNING, LATER = "plan.json", "arms", "tuning", "downstream"
CONTROLS = "controls"
SMALLER, LARGEST = "smaller", "largest"
"""Folders of the two studies of a ladder: the smaller sizes, and the largest ones."""
FORMAT = 1
"""Format version of plan.json."""
MOST_NAMED = 5
"""Settings that are named if a study is continued with others."""
FREE_TO_CHANGE = (
    "name", "study.seeds", "study.repeats", "study.metric", "study.launch", "study.jobs", "study.budgets",
    "study.tuning.extra", "study.controls",
)  # fmt: skip
"""Keys that do not change existing runs: they may differ when a study is resumed. A control has a study of its own."""
PATHS = ("path", "target_path", "init_from", "teacher")
"""Keys of a recipe whose values are paths."""
State = Literal["complete", "failed", "begun", "missing"]


def is_of_controls(key: str, arms: Iterable[str]) -> bool:
    """True for a key of study.toml that describes an arm of a control alone. `arms`: those of the study."""
    return key.startswith("arms.") and not key.startswith(tuple(f"arms.{name}." for name in arms))


def whole_study(folder: Path) -> Path:
    """The folder of the study that a control or a budget belongs to; other folders are returned unchanged."""
    outer = folder.parents[1] if folder.parent.name == CONTROLS else folder.parent
    return whole_study(outer) if outer != folder and (outer / STUDY).is_file() else folder


def is_ladder(folder: Path) -> bool:
    """True for the folder of a ladder of sizes."""
    return (folder / SMALLER / STUDY).is_file()


def resuming_command(folder: Path) -> str:
    """The command that goes on with the study or the ladder that a folder belongs to."""
    whole = whole_study(folder)
    return f"anyformer {'scale' if is_ladder(whole) else 'compare'} {whole}"


class StudyFolder(OpenedFolder):
    """The folder of a planned study."""

    @property
    def path(self) -> Path:
        return self.folder

    @classmethod
    def create(cls, path: Path, study: Study, arms: Sequence[Arm], fingerprint: str, threads: int) -> "StudyFolder":
        """Writes the plan; study.toml comes last, so a folder that has one is a study."""
        (path / ARMS).mkdir(parents=True, exist_ok=True)
        for arm in arms:
            (path / ARMS / f"{arm.name}.toml").write_text(tomli_w.dumps(arm.recipe.to_dict()), encoding="utf-8")
            for task in study.downstream:
                file = path / LATER / task / f"{arm.name}.toml"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(tomli_w.dumps(study.later(task, arm.recipe.model)), encoding="utf-8")
                decode_recipe(provisional(draft(file)), file.stem)  # checked now instead of after the runs
        listed = [
            {
                "name": arm.name,
                "budgets": asdict(arm.budgets),
                "train_flops": arm.train_flops,
                "off": arm.off,
                "changes": {key: list(pair) for key, pair in arm.changes.items()},
            }
            for arm in arms
        ]
        facts = {"format": FORMAT, "data_fingerprint": fingerprint, "threads": threads, "arms": listed}
        write(path / PLAN, json.dumps(facts, indent=1))
        folder = cls(path)
        folder.write(study)
        return folder

    def write(self, study: Study) -> None:
        """Writes study.toml, atomically. What it holds the first time is registered."""
        if not (self.path / STUDY).exists():
            register(self.path, study.to_dict())
        write_atomically(self.path / STUDY, tomli_w.dumps(study.to_dict()))

    @classmethod
    def open(cls, path: str | Path) -> "StudyFolder":
        if not (Path(path) / STUDY).is_file():
            raise CheckpointError(f"{path}: not a study folder: {STUDY} is missing.")
        return cls(Path(path))

    @cached_property
    def document(self) -> Mapping[str, Any]:
        return read_facts(self.path / STUDY, tomllib.loads)

    @property
    def name(self) -> str:
        return str(self.document.get("name", self.path.name))

    @property
    def spec(self) -> StudySpec:
        return decode(StudySpec, self.document.get("study", {}), "study")

    @cached_property
    def plan(self) -> Mapping[str, Any]:
        return read_facts(self.path / PLAN)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The planned arms, the baseline first."""
        arms = []
        for facts in self.plan["arms"]:
            recipe = decode(Recipe, tomllib.loads(self.recipe_file(facts["name"]).read_text(encoding="utf-8")))
            changes = {key: (before, after) for key, (before, after) in facts["changes"].items()}
            budgets = Budgets(**facts["budgets"])
            arms.append(Arm(facts["name"], recipe, budgets, facts["train_flops"], facts["off"], changes))
        return tuple(arms)

    def recipe_file(self, arm: str) -> Path:
        """The recipe file of an arm; runs override its seed and learning rate."""
        return self.path / ARMS / f"{arm}.toml"

    def run(self, arm: str, seed: int) -> Path:
        return self.path / arm / f"seed-{seed}"

    @property
    def tasks(self) -> Mapping[str, str]:
        """Downstream task -> its metric."""
        return {name: str(table[METRIC]) for name, table in self.document.get(LATER, {}).items()}

    def tasks_of(self, seed: int) -> Mapping[str, str]:
        """The downstream tasks of a run with this seed. Runs that repeat a verdict have none: it is about the loss."""
        return {} if seed in self.spec.fresh_seeds else self.tasks

    def later_recipe(self, arm: str, task: str) -> Path:
        """The recipe file by which the models of an arm are fine-tuned on a task."""
        return self.path / LATER / task / f"{arm}.toml"

    def later(self, arm: str, seed: int, task: str) -> Path:
        """The run folder of a downstream task of a finished run."""
        return self.path / LATER / task / arm / f"seed-{seed}"

    def control(self, name: str) -> Path:
        """The folder of the study of a control."""
        return self.path / CONTROLS / name

    def trial(self, arm: str, rate: float) -> Path:
        return self.path / TUNING / arm / f"lr-{rate:.4g}"

    def trials(self, arm: str) -> list[Path]:
        """The run folders of all trials of an arm."""
        trials = (path for path in (self.path / TUNING / arm).glob("lr-*") if is_run_of_study(path))
        return sorted(path for path in trials if (path / RECIPE).is_file())

    @cached_property
    def began_in(self) -> str | None:
        """The folder that relative paths of the study refer to; None if it is not known."""
        registration = registration_of(whole_study(self.path))
        return registration.began_in if registration else None

    def relocations(self, recipe: Path) -> list[str]:
        """Overrides for a recipe of the study: its paths that exist where the study began, and not here."""
        if (began_in := self.began_in) is None:
            return []
        overrides = []
        for key, value in leaves(tomllib.loads(recipe.read_text(encoding="utf-8"))):
            paths = value if isinstance(value, list) else [value]
            if key.rpartition(".")[2] in PATHS and all(isinstance(path, str) for path in paths):
                moved = [relocated_path(path, began_in) for path in paths]
                if moved != paths:
                    overrides.append(f"{key}={json.dumps(moved if isinstance(value, list) else moved[0])}")
        return overrides

    def refuse_another(self, study: Study) -> None:
        """Raises SpecError if the study differs from the one in this folder."""
        changed = changed_leaves(self.document, study.to_dict())
        wrong = {
            key: pair
            for key, pair in changed.items()
            if not key.startswith(FREE_TO_CHANGE) and not is_of_controls(key, study.arms)
        }
        if wrong:
            first = list(wrong.items())[:MOST_NAMED]
            listed = [Problem(key, f"{before!r} in {self.path}, {now!r} now.") for key, (before, now) in first]
            if rest := len(wrong) - len(first):
                listed.append(Problem("", f"and {rest} more settings differ."))
            advice = "a study is resumed with its own settings. Start another: out=NAME (--out NAME)."
            raise SpecError(problems=[*listed, Problem("", advice)])

    def refuse_other_data(self, fingerprint: str) -> None:
        if self.plan["data_fingerprint"] != fingerprint:
            raise DataError(
                f"the data have changed since {self.path} began. Restore the old data, or start another: "
                "out=NAME (--out NAME)."
            )


def standing(run: Path) -> tuple[State, str]:
    """The state of a run, read from its folder, and the reason if it failed."""
    if not (run / RECIPE).is_file():
        return "missing", ""
    if is_complete(run):
        return "complete", ""
    event, facts = last_event(run)
    return ("failed", str(facts.get("why", ""))) if event == "failed" else ("begun", "")
