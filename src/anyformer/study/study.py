"""A study as a value: a base recipe, arms that each change it, what is matched, and the number of seeds.

A study file is a recipe with more tables: `[study]` configures the comparison, `[arms.NAME]` holds the changes of an
arm to the recipe, and `[downstream.NAME]` is a recipe without a model, by which every finished run is fine-tuned and
scored by `metric`. An arm with `init_from = "RUN"` has the model of that run and starts from its weights.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from types import MappingProxyType
from typing import Annotated, Any, Literal

from anyformer.core import Amount, Count, ModelSpec, PartSpec, Positive, Range, Spec, decode, kind_of
from anyformer.core.fields import did_you_mean
from anyformer.core.plain_data import Tree, split
from anyformer.disk import STUDY
from anyformer.errors import Problem, SpecError
from anyformer.models.encoder import Encoder
from anyformer.statistics.power import FEWEST
from anyformer.study.arms import FOLDER, arm_names
from anyformer.study.controls import Control
from anyformer.study.ladder_spec import Ladder
from anyformer.training.recipes.python_values import PYTHON, Target
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import draft, name_of
from anyformer.training.recipes.toml_layers import (
    COMMAND_LINE,
    DEFAULT,
    TomlLayers,
    of_preset,
    overridden,
    preset_names,
    read,
)
from anyformer.training.runs.starting import StartingPoint

Match = Literal["params", "flops", "time", "state", "none"]
BASE, LIKE, METRIC, INIT_FROM = "base", "like", "metric", "init_from"
USUAL_ARMS = ("transformer", "lstm", "cnn", "mamba")
USUAL_PAIR_ARMS = (BASE, "rnn-attention", "rnn-seq2seq", "convs2s")
"""Default arms if the base model has an encoder and a decoder: presets, sized like the base."""
TABLES = ("study", "arms", "downstream")
"""Tables of a study file that a recipe does not have."""
RESERVED, SUFFIX = ("arms", "tuning", "downstream", "controls"), "-study"
OWN = ("data", "objective", "sample", "init_from", "name")
"""Sections of the base recipe that downstream tasks do not inherit."""
TEST_SHARE = 0.05
"""Default fraction of the records for the test split."""
TESTED = TomlLayers.of({"data": {"test": TEST_SHARE}}, DEFAULT)
FRESH = 10_000
"""First of the seeds that repeat the verdicts of a study."""
VOCABULARIES = ("vocab", "encoder.vocab", "decoder.vocab")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.")


@dataclass(frozen=True, kw_only=True)
class Tuning(Spec):
    """Tuning of the learning rate of each arm: the same number of short runs for all arms."""

    trials: Amount = 3
    """Number of learning rates to try, centred on the recipe's own; 0 or 1: no tuning."""
    ratio: Annotated[float, Range(above=1.0)] = 3.0
    """Ratio of neighbouring learning rates."""
    share: Annotated[float, Range(above=0.0, high=1.0)] = 0.2
    """Length of a trial as a fraction of a run's budget."""
    extra: Amount = 3
    """Maximum number of further trials of every arm, while the best rate of one is the lowest or highest tried."""


@dataclass(frozen=True, kw_only=True)
class StudySpec(Spec):
    """How arms are compared."""

    arms: tuple[str, ...] = ()
    """Arms, the baseline first; if not given, the base recipe and all [arms] tables, or a few architectures."""
    match: Match = "params"
    """What all arms have in equal amounts: params, flops and state resize the model; time sets the number of steps."""
    tolerance: Positive = 0.02
    """Maximum relative difference from the baseline in what is matched."""
    seeds: Count = 8
    """Number of runs of each arm; fewer than six cannot distinguish a difference from chance."""
    repeats: Amount = 0
    """Number of further seeds of each arm, with which the verdicts are repeated: the report says how many come again.
    They do not change the verdicts."""
    metric: Literal["auto", "test_loss", "valid_loss"] = "auto"
    """The loss to compare: on the whole test split with the best checkpoint, or on the whole validation split with the
    last one; auto: on the test split if there is one."""
    budgets: tuple[Count, ...] = ()
    """Numbers of steps, in increasing order: the study is repeated for each, with its own schedule and learning rates,
    to show where the curves of arms cross; if not given, the budget of the recipe."""
    controls: dict[str, Control] = field(default_factory=dict)
    """Name -> comparison with a known outcome, which is trained first and shows whether the study can see it."""
    tuning: Tuning = Tuning()
    """Tuning of the learning rate."""
    ladder: Ladder | None = None
    """Sizes of every arm, for `anyformer scale`."""
    launch: Literal["local", "ray"] = "local"
    """Where runs are started: processes on this machine, or a Ray cluster that shares this folder."""
    minutes: Annotated[float, Range(low=0.0)] | None = None
    """Minutes after which `compare` saves all runs and stops; the same command goes on. Not stored with the study."""
    jobs: Count | None = None
    """Number of arms that run at the same time; if not given, one per GPU or one per core."""

    def check(self) -> None:
        twice = [name for place, name in enumerate(self.arms) if name in self.arms[:place]]
        if twice:
            raise SpecError(f"arms: {twice[0]!r} is listed twice. Remove one.")
        if list(self.budgets) != sorted(set(self.budgets)):
            raise SpecError(f"budgets: {list(self.budgets)} must increase. Use {sorted(set(self.budgets))}.")
        if 0 < self.repeats < FEWEST:
            raise SpecError(f"repeats: {self.repeats} seeds cannot settle a difference. Use {FEWEST} or more, or 0.")

    @property
    def fresh_seeds(self) -> range:
        """The seeds of the runs that repeat the verdicts. They do not follow those of the study, which may get more."""
        return range(FRESH, FRESH + self.repeats)

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds of all runs of an arm: first the seeds of the study, then the seeds of the repetition."""
        return (*range(self.seeds), *self.fresh_seeds)


@dataclass(frozen=True)
class Study:
    """The recipes of all arms and the settings of a study, before models are sized."""

    name: str
    spec: StudySpec
    base: TomlLayers
    arms: Mapping[str, TomlLayers]
    """Name -> recipe, the baseline first."""
    downstream: Mapping[str, Tree]
    """Task -> its table, which includes `metric`."""
    controls: "Mapping[str, Study]" = field(default_factory=dict)
    """Name -> the study of two arms with a known outcome."""

    def without_controls(self) -> "Study":
        """The same study, of its arms alone."""
        return replace(self, spec=replace(self.spec, controls={}), controls={})

    def later(self, task: str, model: ModelSpec) -> Tree:
        """The recipe by which a finished model is fine-tuned on a task: the task's table on top of the base recipe."""
        table = {key: value for key, value in self.downstream[task].items() if key != METRIC}
        layers = TomlLayers.of({**table, "model": model.to_dict()}, f"task {task}")
        return layers.on(TESTED).on(self.base.without("model", *OWN)).data

    def to_dict(self) -> dict[str, Any]:
        """The study as a self-contained study file, without references to presets or other files."""
        changed = {
            arm: table for control in self.controls.values() for arm, table in control.changed_sections().items()
        }
        changed |= self.changed_sections()
        study = {**replace(self.spec, minutes=None).to_dict(), "arms": list(self.arms)}
        later = {"downstream": dict(self.downstream)} if self.downstream else {}
        return {"name": self.name, **_stored(self.base), "study": study, "arms": changed, **later}

    def changed_sections(self) -> dict[str, Tree]:
        """Arm -> the sections of its recipe that differ from those of the base."""
        base = _stored(self.base)
        changed = {
            name: {key: value for key, value in _stored(document).items() if base.get(key) != value}
            for name, document in self.arms.items()
        }
        return {
            name: {LIKE: BASE, **table} if "model" not in table and _names_another(name, self.base) else table
            for name, table in changed.items()
        }


Arms = Mapping[str, ModelSpec | str]
"""Arm -> its model, or the name of a preset or of a known architecture; the baseline first."""


def read_study(
    target: Target,
    overrides: Sequence[str] = (),
    values: TomlLayers | None = None,
    models: Arms = MappingProxyType({}),
    *,
    below: TomlLayers | None = None,
) -> Study:
    """A recipe, a preset, a path to data, a model, or a study file; overrides may begin with `study.` and `arms.` too.

    `models`: arms as values, laid over the base recipe in place of its model. `below`: settings that everything else
    overrides."""
    document = draft(target, overrides, values)
    document = document if below is None else document.on(below)
    keys = {*TABLES, *(each.name for each in fields(Recipe))}  # other unknown keys are refused by the recipe
    for key in (key for key in document.data if key not in keys):
        if near := difflib.get_close_matches(key, TABLES, 1):
            origin = document.origin(key)
            where = "" if origin in (COMMAND_LINE, DEFAULT) else f" (from {origin})"
            raise SpecError(problems=[Problem(key, f"a study has no such table. Did you mean {near[0]!r}?{where}")])
    spec = decode(StudySpec, document.data.get("study", {}), "study")
    if spec.ladder is not None and below is None:
        ladder = str(target).removesuffix(f"/{STUDY}")
        raise SpecError(f"study.ladder: {ladder} describes a ladder of sizes. Use: anyformer scale {ladder}")
    tables, tasks = (_tables(document.data, key) for key in ("arms", "downstream"))
    base = document.without(*TABLES, "name").on(TESTED)
    usual = USUAL_PAIR_ARMS if _has_two_sides(base) else USUAL_ARMS
    known = {arm for control in spec.controls.values() for arm in control.pair}
    named = [name for name in tables if name not in known]
    names = spec.arms or tuple(models) or ((BASE, *named) if named or spec.ladder else usual)
    if len(names) < 2 and spec.ladder is None:
        for name in names:
            _arm(name, models, tables, base)  # a mistyped name is the mistake to report
        raise SpecError(f"study.arms: {', '.join(names)} is a single arm, but a comparison needs two. Add {BASE!r}.")
    for name in (*names, *known, *spec.controls):
        _check_name(name)
    arms = {name: _arm(name, models, tables, base) for name in names}
    _refuse_unused(document, (*names, *known))
    _refuse_lost(base, arms)
    _refuse_resized(spec, [name for name in names if INIT_FROM in tables.get(name, {})])
    alone = replace(spec, controls={}, budgets=(), repeats=0, ladder=None)
    controls = dict[str, Study]()
    for name, control in spec.controls.items():
        changed = overridden(base, control.recipe_changes)
        pair = {arm: _arm(arm, models, tables, changed) for arm in control.pair}
        settings = TomlLayers.of({"study": replace(alone, arms=control.pair).to_dict()}, DEFAULT)
        theirs = decode(StudySpec, overridden(settings, control.study_changes).data["study"], "study")
        controls[name] = Study(name, theirs, changed, pair, downstream={})
    for name, table in tasks.items():
        _check_name(name)
        if not isinstance(table.get(METRIC), str):
            raise SpecError(f"downstream.{name}.{METRIC}: is missing. Set a metric of `anyformer evaluate`.")
    return Study(f"{name_of(target, document).removesuffix(SUFFIX)}{SUFFIX}", spec, base, arms, tasks, controls)


def _tables(data: Tree, key: str) -> dict[str, Tree]:
    entries = data.get(key, {})
    named = {f"{key}.{name}": table for name, table in entries.items()} if isinstance(entries, Mapping) else {}
    for path, table in {key: entries, **named}.items():
        if not isinstance(table, Mapping):
            raise SpecError(problems=[Problem(path, "expected a table of changes to the recipe.")])
    return {name: dict(table) for name, table in entries.items()}


def _check_name(name: str) -> None:
    """Raises SpecError unless the name of an arm is valid as the name of a folder."""
    if not name or not set(name) <= _LETTERS or name.startswith(".") or name in RESERVED:
        raise SpecError(f"study.arms: {name!r} is not a valid name. Use letters, digits and -_+.; not {RESERVED}.")


def _arm(name: str, models: Arms, tables: Mapping[str, Tree], base: TomlLayers) -> TomlLayers:
    """The base recipe with the changes of an arm: its model as a value, its own table, or a built-in arm or preset."""
    model = models.get(name)
    if model is None and name not in tables:
        return base if name == BASE else _known(name, base, tables)
    table = dict(tables.get(name, {}))
    like = table.pop(LIKE, None)
    if like is not None and not isinstance(like, str):
        raise SpecError(f"arms.{name}.{LIKE}: expected the name of an arm or a preset, got {like!r}.")
    document = TomlLayers.of(table, f"arm {name}")
    if isinstance(model, ModelSpec):
        return document.on(TomlLayers.of({"model": model.to_dict()}, PYTHON).over(base))
    if isinstance(start := table.get(INIT_FROM), str) and "model" not in table:
        theirs = {"model": StartingPoint.open(start).model.to_dict()}
        return document.on(TomlLayers.of(theirs, f"arm {name}, {INIT_FROM}={start}").over(base))
    if "kind" in table.get("model", {}):  # a complete model, as study.toml stores it, replaces the base's
        return document.over(base)
    return document.on(_known(model or like or _namesake(name, table), base, tables))


def _namesake(name: str, table: Tree) -> str:
    """The architecture that the table of an arm changes: the one of its name, unless it describes layers of its own."""
    return name if _is_known(name) and not _has_layers(table.get("model", {})) else BASE


def _is_known(name: str) -> bool:
    return name in arm_names() or name in preset_names()


def _names_another(name: str, base: TomlLayers) -> bool:
    """True if an arm of this name has another model than the base recipe, unless its table says otherwise."""
    if name in arm_names() and _has_two_sides(base):
        return True
    return _is_known(name) and _stored(_known(name, base, {}))["model"] != _stored(base)["model"]


def _has_layers(model: Mapping[str, Any]) -> bool:
    """True if a table names a preset or lists the branches of a block, instead of changing some that exist."""
    return "preset" in model or any(
        (key == "branches" and isinstance(value, list)) or (isinstance(value, Mapping) and _has_layers(value))
        for key, value in model.items()
    )


def _known(name: str, base: TomlLayers, tables: Mapping[str, Tree]) -> TomlLayers:
    """The recipe of a built-in arm or a preset, on top of the base recipe, or the base recipe itself."""
    if name == BASE:
        return base
    if name in arm_names():
        if _has_two_sides(base):
            raise SpecError(
                f"study.arms: {name!r} changes the one stack of a model, and this one has an encoder and a decoder. "
                f"Name presets, as {', '.join(USUAL_PAIR_ARMS)}, or write what changes: [arms.NAME]."
            )
        return _built_in(name, base).on(base)
    if name in preset_names():
        return of_preset(name).on(base.without("model"))
    if "/" in name or name.endswith(".toml"):
        raise SpecError(
            f"no arm is called {name!r}: an arm is a name. What it changes belongs under [arms.NAME] of a study."
        )
    raise SpecError(f"no arm is called {name!r}.{did_you_mean(name, {BASE, *tables, *arm_names(), *preset_names()})}")


def _built_in(name: str, base: TomlLayers) -> TomlLayers:
    """The changes of a built-in arm. In an encoder, parts that read left to right run in both directions."""
    changes = read(FOLDER / f"{name}.toml").data
    if base.data.get("model", {}).get("kind") == Encoder.kind:
        blocks = changes["model"]["stack"]["blocks"].values()
        for branch in (branch for block in blocks for branch in block["branches"]):
            if kind_of(PartSpec, branch["part"]["kind"]).causal_only:
                branch["part"] = {"kind": "bidirectional", "part": branch["part"]}
    return TomlLayers.of(changes, f"arm {name}")


def _refuse_resized(spec: StudySpec, started: Sequence[str]) -> None:
    """Raises SpecError if matching would resize the model of an arm that starts from the weights of a run."""
    if started and spec.match not in ("none", "time"):
        raise SpecError(
            f"study.match={spec.match}: resizes the models of the arms, and {started[0]} starts from the weights of "
            f"another run ({INIT_FROM}). Use study.match=none."
        )


def _has_two_sides(base: TomlLayers) -> bool:
    return "encoder" in base.data.get("model", {})


def _stored(document: TomlLayers) -> Tree:
    """The data of a document without vocabularies that come from a preset: those of the data replace them."""
    data = copy.deepcopy(document.data)
    for key in VOCABULARIES:
        *sides, last = split(key)
        if document.origin(f"model.{key}").startswith(("preset ", DEFAULT)):
            reduce(lambda table, side: table.get(side, {}), sides, data["model"]).pop(last, None)
    return data


def _refuse_unused(document: TomlLayers, names: Sequence[str]) -> None:
    """Raises SpecError for changes on the command line to an arm that the study does not have."""
    for key, origin in document.origins.items():
        table, name, *_ = (*split(key), "")
        if table == "arms" and origin == COMMAND_LINE and name not in names:
            raise SpecError(
                problems=[Problem(key, f"the study has no arm called {name!r}.{did_you_mean(name, set(names))}")]
            )


def _refuse_lost(base: TomlLayers, arms: Mapping[str, TomlLayers]) -> None:
    """Raises SpecError for keys of the command line that every arm overrides, so that they have no effect."""
    set_keys = [key for key, origin in base.origins.items() if origin == COMMAND_LINE]
    lost = [key for key in set_keys if all(arm.origin(key) != COMMAND_LINE for arm in arms.values())]
    if lost:
        raise SpecError(
            problems=[Problem(key, "has no effect: every arm sets this itself. Write arms.NAME." + key) for key in lost]
        )
