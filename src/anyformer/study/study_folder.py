"""A study on the disk (docs/formats.md): study.toml, arms/NAME.toml, and a run folder for each arm and seed."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w

from anyformer.core import decode
from anyformer.core.fields import leaves
from anyformer.disk import EVENTS, RECIPE, sync, write
from anyformer.errors import CheckpointError, DataError, Problem, SpecError
from anyformer.run import Run
from anyformer.study.planning import Arm
from anyformer.study.sizing import Budgets
from anyformer.study.study import METRIC, Study, StudySpec
from anyformer.training.recipes.recipe import Recipe, decode_recipe
from anyformer.training.recipes.resolve import draft, provisional

STUDY, PLAN, ARMS, TUNING, LATER = "study.toml", "plan.json", "arms", "tuning", "downstream"
FORMAT = 1
"""Format version of plan.json."""
FREE_TO_CHANGE = ("name", "study.seeds", "study.metric", "study.launch", "study.jobs")
"""Keys that do not change existing runs: they may differ when a study is resumed."""
State = Literal["complete", "failed", "begun", "missing"]


class Standing(NamedTuple):
    """The state of a run, and the reason if it failed."""

    state: State
    why: str = ""
    """Reason of a failure; empty if there is none."""


@dataclass(frozen=True)
class StudyFolder:
    """The folder of a planned study."""

    path: Path

    @classmethod
    def create(cls, path: Path, study: Study, arms: Sequence[Arm], fingerprint: str, threads: int) -> "StudyFolder":
        """Writes the plan; study.toml comes last, so a folder that has one is a study."""
        (path / ARMS).mkdir(parents=True, exist_ok=True)
        for arm in arms:
            (path / ARMS / f"{arm.name}.toml").write_text(tomli_w.dumps(arm.recipe.to_dict()), encoding="utf-8")
            for task in study.downstream:
                _write_later(path / LATER / task / f"{arm.name}.toml", study.later(task, arm.recipe.model))
        listed = [_facts(arm) for arm in arms]
        facts = {"format": FORMAT, "data_fingerprint": fingerprint, "threads": threads, "arms": listed}
        write(path / PLAN, json.dumps(facts, indent=1))
        folder = cls(path)
        folder.write(study)
        return folder

    def write(self, study: Study) -> None:
        """Writes study.toml, atomically."""
        write(self.path / f".{STUDY}", tomli_w.dumps(study.to_dict()))
        os.replace(self.path / f".{STUDY}", self.path / STUDY)
        sync(self.path)

    @classmethod
    def open(cls, path: str | Path) -> "StudyFolder":
        if not (Path(path) / STUDY).is_file():
            raise CheckpointError(f"{path}: not a study folder: {STUDY} is missing.")
        return cls(Path(path))

    @cached_property
    def document(self) -> Mapping[str, Any]:
        try:
            document = tomllib.loads((self.path / STUDY).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / STUDY}: cannot be read ({type(error).__name__}).") from None
        return document

    @property
    def name(self) -> str:
        return str(self.document.get("name", self.path.name))

    @property
    def spec(self) -> StudySpec:
        return decode(StudySpec, self.document.get("study", {}), "study")

    @cached_property
    def plan(self) -> Mapping[str, Any]:
        try:
            facts: Mapping[str, Any] = json.loads((self.path / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / PLAN}: cannot be read ({type(error).__name__}).") from None
        return facts

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The planned arms, the baseline first."""
        return tuple(_arm(self.recipe_file(facts["name"]), facts) for facts in self.plan["arms"])

    def recipe_file(self, arm: str) -> Path:
        """The recipe file of an arm; runs override its seed and learning rate."""
        return self.path / ARMS / f"{arm}.toml"

    def run(self, arm: str, seed: int) -> Path:
        return self.path / arm / f"seed-{seed}"

    @property
    def tasks(self) -> Mapping[str, str]:
        """Downstream task -> its metric."""
        return {name: str(table[METRIC]) for name, table in self.document.get(LATER, {}).items()}

    def later_recipe(self, arm: str, task: str) -> Path:
        """The recipe file by which the models of an arm are fine-tuned on a task."""
        return self.path / LATER / task / f"{arm}.toml"

    def later(self, arm: str, seed: int, task: str) -> Path:
        """The run folder of a downstream task of a finished run."""
        return self.path / LATER / task / arm / f"seed-{seed}"

    def trial(self, arm: str, rate: float) -> Path:
        return self.path / TUNING / arm / f"lr-{rate:.3g}"

    def refuse_another(self, study: Study) -> None:
        """Raises SpecError if the study differs from the one in this folder."""
        before, now = dict(leaves(self.document)), dict(leaves(study.to_dict()))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        wrong = [key for key in changed if not key.startswith(FREE_TO_CHANGE)]
        if wrong:
            listed = [Problem(key, f"{before.get(key)!r} in {self.path}, {now.get(key)!r} now.") for key in wrong]
            raise SpecError(
                problems=[*listed, Problem("", "a study is resumed with its own settings. Start another: --out NAME.")]
            )

    def refuse_other_data(self, fingerprint: str) -> None:
        if self.plan["data_fingerprint"] != fingerprint:
            raise DataError(
                f"the data have changed since {self.path} began. Restore the old data, or start another: --out NAME."
            )


def standing(run: Path) -> Standing:
    """The state of a run, read from its folder."""
    if not (run / RECIPE).is_file():
        return Standing("missing")
    if Run(run).complete:
        return Standing("complete")
    lines = (run / EVENTS).read_text(encoding="utf-8").splitlines() if (run / EVENTS).exists() else []
    word, _, facts = lines[-1].partition(" ")[2].partition(" ") if lines else ("", "", "")
    return Standing("failed", str(json.loads(facts).get("why", ""))) if word == "failed" else Standing("begun")


def _write_later(file: Path, recipe: Mapping[str, Any]) -> None:
    """Writes the recipe of a downstream task, and checks it now instead of after the runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(recipe), encoding="utf-8")
    decode_recipe(provisional(draft(file)), file.stem)


def _facts(arm: Arm) -> dict[str, Any]:
    changes = {key: list(pair) for key, pair in arm.changes.items()}
    return {
        "name": arm.name,
        "budgets": asdict(arm.budgets),
        "train_flops": arm.train_flops,
        "off": arm.off,
        "changes": changes,
    }


def _arm(file: Path, facts: Mapping[str, Any]) -> Arm:
    recipe = decode(Recipe, tomllib.loads(file.read_text(encoding="utf-8")))
    changes = {key: (before, after) for key, (before, after) in facts["changes"].items()}
    return Arm(facts["name"], recipe, Budgets(**facts["budgets"]), facts["train_flops"], facts["off"], changes)
