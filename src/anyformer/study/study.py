"""A study as a value: a base recipe, arms that each change something in it, what is matched, how often it is repeated.

A study file is a recipe with tables more: `[study]` says how, `[arms.NAME]` what an arm changes in the recipe, and
`[downstream.NAME]` what every finished run learns next, to be scored by its `metric`: a recipe without a model.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from types import MappingProxyType
from typing import Annotated, Any, Literal

from anyformer.core import Amount, Count, ModelSpec, Positive, Range, Spec, decode
from anyformer.core.fields import did_you_mean
from anyformer.core.paths import Tree, split
from anyformer.errors import Problem, SpecError
from anyformer.models.presets import preset_names
from anyformer.study.arms import FOLDER, arm_names
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import PYTHON, Target, draft, name_of
from anyformer.training.recipes.toml_layers import COMMAND_LINE, DEFAULT, TomlLayers, of_preset, read

Match = Literal["params", "flops", "time", "state", "none"]
BASE, LIKE, METRIC = "base", "like", "metric"
USUAL_ARMS = ("transformer", "lstm", "cnn", "mamba")
USUAL_PAIR_ARMS = (BASE, "rnn-attention", "rnn-seq2seq", "convs2s")
"""Of what has an encoder and a decoder: presets, in the size of the base."""
TABLES = ("study", "arms", "downstream")
"""What a study file has more than a recipe."""
RESERVED, SUFFIX = ("arms", "tuning", "downstream"), "-study"
OWN = ("data", "objective", "sample", "init_from", "name")
"""Of the base recipe, what a task that comes later does not take over."""
TEST_SHARE = 0.05
"""Of the records, kept for the judgement where nobody says how many."""
TESTED = TomlLayers.of({"data": {"test": TEST_SHARE}}, DEFAULT)
VOCABULARIES = ("vocab", "encoder.vocab", "decoder.vocab")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.")


@dataclass(frozen=True, kw_only=True)
class Tuning(Spec):
    """How each arm finds its learning rate before it is judged: the same number of short runs for all."""

    trials: Amount = 3
    """Learning rates that are tried, the recipe's own in their middle; 0 or 1: the recipe's own."""
    ratio: Annotated[float, Range(above=1.0)] = 3.0
    """Between neighbouring rates."""
    share: Annotated[float, Range(above=0.0, high=1.0)] = 0.2
    """Of a run's budget that a trial gets."""


@dataclass(frozen=True, kw_only=True)
class StudySpec(Spec):
    """How arms are compared."""

    arms: tuple[str, ...] = ()
    """Names, the baseline first; the base recipe and all [arms] tables, or a few architectures, if not given."""
    match: Match = "params"
    """What all arms have as much of: params, flops and state size the model; time gives each its number of steps."""
    tolerance: Positive = 0.02
    """How far an arm may be from the baseline in what is matched, as a share of it."""
    seeds: Count = 6
    """Runs of each arm; fewer than six cannot tell a difference from chance."""
    metric: Literal["auto", "test_loss", "valid_loss"] = "auto"
    """What is judged; auto: the loss on the test split, or on validation where there is no test split."""
    tuning: Tuning = Tuning()
    """How learning rates are found."""
    launch: Literal["local", "ray"] = "local"
    """Where runs go: processes on this machine, or a Ray cluster that shares this folder."""
    jobs: Count | None = None
    """Arms that run at the same time; one a core or one a GPU if not given."""

    def check(self) -> None:
        twice = [name for place, name in enumerate(self.arms) if name in self.arms[:place]]
        if twice:
            raise SpecError(f"arms: {twice[0]!r} stands there twice.")


@dataclass(frozen=True)
class Study:
    """What is compared with what, before anything is sized or run."""

    name: str
    spec: StudySpec
    base: TomlLayers
    arms: Mapping[str, TomlLayers]
    """Name -> recipe, the baseline first."""
    downstream: Mapping[str, Tree]
    """Task -> what its table says, `metric` among it."""

    def later(self, task: str, model: ModelSpec) -> Tree:
        """The recipe by which a finished model learns a task: what the table says, the rest as it learned before."""
        table = {key: value for key, value in self.downstream[task].items() if key != METRIC}
        layers = TomlLayers.of({**table, "model": model.to_dict()}, f"task {task}")
        return layers.on(TESTED).on(self.base.without("model", *OWN)).data

    def to_dict(self) -> dict[str, Any]:
        """As a study file, in which no preset and no other file is needed any more."""
        base, arms = _told(self.base), {name: _told(document) for name, document in self.arms.items()}
        changed = {
            name: {key: value for key, value in arm.items() if base.get(key) != value} for name, arm in arms.items()
        }
        study = {**self.spec.to_dict(), "arms": list(arms)}
        later = {"downstream": dict(self.downstream)} if self.downstream else {}
        return {"name": self.name, **base, "study": study, "arms": changed, **later}


Arms = Mapping[str, ModelSpec | str]
"""Arm -> its model, or the name of a preset or of a known architecture; the baseline first."""


def read_study(
    target: Target, overrides: Sequence[str] = (), values: TomlLayers | None = None, models: Arms = MappingProxyType({})
) -> Study:
    """A recipe, a preset, a path to data, a model, or a study file; overrides may begin with `study.` and `arms.` too.

    `models`: arms as values, laid over the base recipe in place of its model."""
    document = draft(target, overrides, values)
    _check_tables(document)
    spec = decode(StudySpec, document.data.get("study", {}), "study")
    tables, tasks = (_tables(document.data, key) for key in ("arms", "downstream"))
    base = document.without(*TABLES, "name").on(TESTED)
    usual = USUAL_PAIR_ARMS if _has_two_sides(base) else USUAL_ARMS
    names = spec.arms or tuple(models) or ((BASE, *tables) if tables else usual)
    if len(names) < 2:
        raise SpecError(f"study.arms: {', '.join(names)} alone has nothing to be compared with. Add {BASE!r}.")
    for name in names:
        _check_name(name)
    arms = {name: _given(models[name], base) if name in models else _arm(name, tables, base) for name in names}
    _refuse_lost(base, arms)
    for name, table in tasks.items():
        _check_name(name)
        if not isinstance(table.get(METRIC), str):
            raise SpecError(f"downstream.{name}.{METRIC}: name the score that counts, as `anyformer evaluate` does.")
    return Study(f"{name_of(target, document).removesuffix(SUFFIX)}{SUFFIX}", spec, base, arms, tasks)


def _check_tables(document: TomlLayers) -> None:
    """A table of a study under a name that is nearly its own. What else nobody knows, a recipe answers best."""
    known = {*TABLES, *(field.name for field in fields(Recipe))}
    for key in (key for key in document.data if key not in known):
        if near := difflib.get_close_matches(key, TABLES, 1):
            origin = document.origin(key)
            where = "" if origin in (COMMAND_LINE, DEFAULT) else f" (from {origin})"
            raise SpecError(problems=[Problem(key, f"a study has no such table. Did you mean {near[0]!r}?{where}")])


def _tables(data: Tree, key: str) -> dict[str, Tree]:
    entries = data.get(key, {})
    wrong = (
        [name for name, table in entries.items() if not isinstance(table, Mapping)]
        if isinstance(entries, Mapping)
        else []
    )
    if not isinstance(entries, Mapping) or wrong:
        raise SpecError(problems=[Problem(".".join([key, *wrong[:1]]), "expected a table of changes to the recipe.")])
    return {name: dict(table) for name, table in entries.items()}


def _check_name(name: str) -> None:
    """A name is a folder too."""
    if not name or not set(name) <= _LETTERS or name.startswith(".") or name in RESERVED:
        raise SpecError(f"study.arms: {name!r} is no name for an arm. Use letters, digits and -_+.; not {RESERVED}.")


def _given(model: ModelSpec | str, base: TomlLayers) -> TomlLayers:
    """The base recipe with an arm's model, given as a value or by name."""
    if isinstance(model, str):
        return _known(model, base, {})
    return TomlLayers.of({"model": model.to_dict()}, PYTHON).over(base)


def _arm(name: str, tables: Mapping[str, Tree], base: TomlLayers) -> TomlLayers:
    """The base recipe with what the arm changes: by its own table, or by what its name is known for."""
    if name not in tables:
        return base if name == BASE else _known(name, base, tables)
    table = dict(tables[name])
    like = table.pop(LIKE, None)
    if like is not None and not isinstance(like, str):
        raise SpecError(f"arms.{name}.{LIKE}: expected the name of an arm or a preset, got {like!r}.")
    document = TomlLayers.of(table, f"arm {name}")
    if "kind" in table.get("model", {}):  # a whole model, as study.toml stores it: nothing of the base's is left
        return document.over(base)
    return document.on(base if like is None else _known(like, base, tables))


def _known(name: str, base: TomlLayers, tables: Mapping[str, Tree]) -> TomlLayers:
    if name in arm_names():
        if _has_two_sides(base):
            raise SpecError(
                f"study.arms: {name!r} changes the one stack of a model, and this one has an encoder and a decoder. "
                f"Name presets, as {', '.join(USUAL_PAIR_ARMS)}, or write what changes: [arms.NAME]."
            )
        return TomlLayers.of(read(FOLDER / f"{name}.toml").data, f"arm {name}").on(base)
    if name in preset_names():
        return of_preset(name).on(base.without("model"))
    raise SpecError(f"no arm is called {name!r}.{did_you_mean(name, {BASE, *tables, *arm_names(), *preset_names()})}")


def _has_two_sides(base: TomlLayers) -> bool:
    return "encoder" in base.data.get("model", {})


def _told(document: TomlLayers) -> Tree:
    """What somebody has said: a preset's vocabulary gives way to the data's."""
    data = copy.deepcopy(document.data)
    for key in VOCABULARIES:
        *sides, last = split(key)
        if document.origin(f"model.{key}").startswith(("preset ", DEFAULT)):
            reduce(lambda table, side: table.get(side, {}), sides, data["model"]).pop(last, None)
    return data


def _refuse_lost(base: TomlLayers, arms: Mapping[str, TomlLayers]) -> None:
    """A word of the command line that no arm heeds is a mistake."""
    set_keys = [key for key, origin in base.origins.items() if origin == COMMAND_LINE]
    lost = [key for key in set_keys if all(arm.origin(key) != COMMAND_LINE for arm in arms.values())]
    if lost:
        raise SpecError(problems=[Problem(key, "every arm sets this itself. Write arms.NAME." + key) for key in lost])
