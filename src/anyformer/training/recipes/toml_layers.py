"""Recipe files as plain data: TOML layers on top of each other, where each value came from, and their decoding.

defaults < the file that is extended < the preset < the file < the command line

Mistakes are explained: the section that a key belongs to, the file it comes from. The class of the decoded recipe is an
argument: the real one, or its stand-in from the catalogue, which needs no torch.
"""

import copy
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from anyformer.core.fields import did_you_mean, leaves
from anyformer.core.plain_data import Tree, assign, merge, parse_override, split
from anyformer.core.schema import tables
from anyformer.core.spec import Spec, decode, default_of, hints_of
from anyformer.disk import missing
from anyformer.errors import Problem, SpecError

FORMAT = 2
MAX_BYTES = 1 << 20
COMMAND_LINE, DEFAULT = "command line", "default"
SHORT = (["data", "packing"], ["tune"])
"""Keys of families that a string names a kind of."""


@dataclass(frozen=True)
class TomlLayers:
    """Plain data, and the origin of each of its leaves: dotted key -> file, preset or command line."""

    data: Tree
    origins: Mapping[str, str]

    @classmethod
    def of(cls, data: Tree, origin: str) -> "TomlLayers":
        """A document all of whose values have one origin."""
        if isinstance(kind := data.get("tune"), str):
            data = {**data, "tune": {"kind": kind}}
        section = data.get("data")
        if isinstance(section, Mapping) and isinstance(kind := section.get("packing"), str):
            data = {**data, "data": {**section, "packing": {"kind": kind}}}
        return cls(data, {key: origin for key, _ in leaves(data)})

    def on(self, base: "TomlLayers") -> "TomlLayers":
        """This document on top of another."""
        return _traced(merge(base.data, self.data), self.origins, base.origins)

    def over(self, base: "TomlLayers") -> "TomlLayers":
        """This document on top of another; a whole model replaces the other's instead of merging with it."""
        return self.on(base.without("model") if "model" in self.data else base)

    def with_value(self, key: str, value: Any) -> "TomlLayers":
        """This document with one value set by the command line."""
        data = copy.deepcopy(self.data)
        assign(data, key, value)
        overridden_origins = {place: COMMAND_LINE for place, _ in leaves(value, ".".join(split(key)))}
        return _traced(data, overridden_origins, self.origins)

    def only(self, *keys: str) -> "TomlLayers":
        """Some of its top-level keys."""
        return _traced({key: value for key, value in self.data.items() if key in keys}, self.origins, {})

    def without(self, *keys: str) -> "TomlLayers":
        """All but some of its top-level keys."""
        return self.only(*(key for key in self.data if key not in keys))

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from."""
        return _find(key, self.origins) or DEFAULT


def read(target: str | Path, overrides: Sequence[str] = ()) -> TomlLayers:
    """Reads a preset or a recipe file with everything that it extends, and applies overrides."""
    return overridden(_read(locate(str(target)), ()), overrides)


def overridden(document: TomlLayers, overrides: Sequence[str]) -> TomlLayers:
    """The document with the overrides of the command line applied."""
    # Sorted by depth, kinds first, so that no override replaces another whatever their order.
    for key, value in sorted(map(parse_override, overrides), key=_reach):
        if split(key) in SHORT and isinstance(value, str):  # a string is short for its kind
            document = document.with_value(f"{key}.kind", value)
        elif split(key) == ["model", "preset"]:
            document = of_preset(value).on(document.without("model"))
        elif split(key) == ["model"] and value in preset_names():
            raise SpecError(f"model: expected a table, got {value!r}. Write model.preset={value}")
        else:
            document = document.with_value(key, value)
    _check_format(document.data, COMMAND_LINE)
    return document


PRESETS = Path(__file__).parents[2] / "models" / "presets"
"""Complete models to start from: one recipe file each, named after the model."""


def preset_names() -> tuple[str, ...]:
    """The name of every preset."""
    return tuple(sorted(file.stem for file in PRESETS.glob("*.toml")))


def preset_file(name: str) -> Path:
    """The recipe file behind a name; a name is never a path."""
    if name not in preset_names():
        raise SpecError(f"no preset is called {name!r}.{did_you_mean(name, preset_names())}")
    return PRESETS / f"{name}.toml"


def locate(target: str) -> Path:
    """The file that a target names: a preset, or a path that ends in .toml."""
    if target.endswith(".toml"):
        if not Path(target).is_file():
            raise SpecError(f"{target}: not a regular file." if os.path.exists(target) else _missing(Path(target)))
        return Path(target)
    if target not in preset_names() and Path(target).exists():
        raise SpecError(f"{target} is not a recipe: a recipe is a .toml file.")
    if Path(f"{target}.toml").is_file():
        raise SpecError(f"no preset is called {target!r}. Did you mean the file '{target}.toml'?")
    if Path(target).name != target or Path(target).suffix[1:].isalpha():
        raise SpecError(_missing(Path(target)))
    return preset_file(target)


def _reach(override: tuple[str, Any]) -> tuple[int, bool]:
    keys = split(override[0])
    return len(keys), keys[-1] not in ("kind", "preset")


def _read(file: Path, above: tuple[Path, ...]) -> TomlLayers:
    above = (*above, file)
    if file.resolve() in (other.resolve() for other in above[:-1]):
        raise SpecError(f"{' needs '.join(map(_label, above))}: a circle. Remove one `extends` or `preset`.")
    data = _parse(file)
    _check_format(data, _label(file))
    extends, model = data.pop("extends", None), data.get("model")
    preset = model.pop("preset", None) if isinstance(model, dict) else None
    document = TomlLayers.of(data, _label(file))
    if preset is not None:
        document = document.on(of_preset(preset, above))
    if extends is None:
        return document
    base = _read(_extended(file, extends), above).without("name")
    return document.on(base if preset is None else base.without("model"))


def of_preset(name: Any, above: tuple[Path, ...] = ()) -> TomlLayers:
    """The model section of a preset. `above`: the files that lead to it."""
    where = f"{_label(above[-1])}: model.preset" if above else "model.preset"
    if not isinstance(name, str):
        raise SpecError(f"{where}: expected a string, got {name!r}.")
    try:
        file = preset_file(name)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    return _read(file, above).only("model")


def _extended(file: Path, extends: Any) -> Path:
    where = f"{_label(file)}: extends"
    if not isinstance(extends, str) or not extends.endswith(".toml"):
        hint = f' For a preset write preset = "{extends}" under [model].' if extends in preset_names() else ""
        raise SpecError(f"{where}: expected the name of a .toml file, got {extends!r}.{hint}")
    base = Path(os.path.normpath(file.parent / extends))
    if not base.is_file():
        raise SpecError(f"{where}: {_missing(base)}")
    return base


def _parse(file: Path) -> Tree:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SpecError(f"{file}: larger than {MAX_BYTES} bytes, so it is not a recipe.")
        text = content.decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: not UTF-8 text, at byte {error.start}.") from None
    except RecursionError:
        raise SpecError(f"{file}: nested too deeply.") from None
    except tomllib.TOMLDecodeError as error:
        place, lines = re.search(r" \(at line (\d+), column (\d+)\)$", str(error)), text.split("\n")
        line, column = place.groups() if place else (len(lines), len(lines[-1]) + 1)
        raise SpecError(f"{file}:{line}:{column}: {re.sub(r' [(]at [^()]*[)]$', '', str(error))}.") from None
    except ValueError:
        raise SpecError(f"{file}: holds a whole number with thousands of digits.") from None


def _check_format(data: Tree, where: str) -> None:
    form = data.get("format", FORMAT)
    if type(form) is int and form > FORMAT:
        raise SpecError(f"{where}: made by a newer anyformer: format {form}, this one reads {FORMAT}. Upgrade.")
    if type(form) is int and 0 < form < FORMAT:
        raise SpecError(
            f"{where}: made by an anyformer before its first release: format {form}, which cannot be read any more. "
            f"Remove the key `format` and train again."
        )


def _label(file: Path) -> str:
    return f"preset {file.stem}" if file.parent == PRESETS else str(file)


def _missing(path: Path) -> str:
    text, presets = missing(path), difflib.get_close_matches(path.stem, preset_names(), 1, cutoff=0.75)
    return f"{text} Did you mean the preset {presets[0]!r}?" if presets and "Did you mean" not in text else text


def _traced(data: Tree, over: Mapping[str, str], base: Mapping[str, str]) -> TomlLayers:
    origins = {key: _find(key, over) or _find(key, base) for key, _ in leaves(data)}
    return TomlLayers(data, {key: origin for key, origin in origins.items() if origin})


def _find(key: str, origins: Mapping[str, str]) -> str | None:
    """The origin of a key, or of one of its elements if the key is a list."""
    if key in origins:
        return origins[key]
    return next((origin for place, origin in origins.items() if place.startswith(f"{key}.")), None)


S = TypeVar("S", bound=Spec)


def decode_layers(recipe_class: type[S], document: TomlLayers) -> tuple[S, dict[str, str]]:
    """The recipe, and the origin of each of its values; the error lists all problems at once."""
    _refuse_other_files(recipe_class, document)
    kinds: Tree = {}  # `optimizer.lr=1e-4` refers to the default optimiser
    for field in fields(recipe_class):
        section, default = document.data.get(field.name), default_of(field)
        if isinstance(default, dict) and "kind" in default and isinstance(section, dict) and "kind" not in section:
            kinds[field.name] = {"kind": default["kind"]}
    document = document.on(TomlLayers.of(kinds, DEFAULT))
    try:
        recipe = decode(recipe_class, document.data)
    except SpecError as error:
        strays = dict(_strays(recipe_class, document.data))
        raise SpecError(problems=[_explain(problem, strays, document) for problem in error.problems]) from None
    return recipe, {key: document.origin(key) for key, _ in leaves(recipe.to_dict())}


def _refuse_other_files(recipe_class: type[Spec], document: TomlLayers) -> None:
    """Raises SpecError if the document is a model or a study file instead of a recipe."""
    models: type[Spec] = hints_of(recipe_class)["model"]
    known = {field.name for kind in models.kinds.values() for field in fields(kind)} | {"kind", "preset"}
    model_keys = [key for key in document.data if key in known]
    if "model" not in document.data and model_keys:
        place = document.origin(model_keys[0])
        raise SpecError(f"{place}: {', '.join(model_keys)} at the top: this is a model. Put it under [model].")
    for key in ("study", "arms"):
        if key in document.data:
            raise SpecError(f"[{key}]: this is a study of several models. Run it: anyformer compare FILE.")


def _strays(recipe_class: type[Spec], data: Tree) -> Iterator[tuple[str, str]]:
    """Keys in the wrong section of a recipe, with a hint at the right section."""
    recipe_tables = list(tables(recipe_class, data))
    homes: dict[str, list[str]] = {"preset": ["model"]}
    for path, cls, _ in recipe_tables:
        for field in fields(cls):
            homes.setdefault(field.name, []).append(path)
    for path, cls, table in recipe_tables:
        known = {field.name for field in fields(cls)} | {"kind"}
        for key in (key for key in table if key not in known and key in homes):
            fits_kind = any(key in (field.name for field in fields(other)) for other in cls.kinds.values() if cls.kind)
            # With another kind the key would be right where it is, so a section far away is no better guess.
            near = [home for home in homes[key] if not fits_kind or home.startswith(f"{path}.")]
            nearest = sorted(near, key=lambda home: len(split(home)))[:3]
            if not nearest:
                continue
            places = [f"{home}.{key}" if home else key for home in nearest]
            sections = " or ".join(home or "the top" for home in nearest)
            yield f"{path}.{key}" if path else key, f"{key} belongs to {sections}: write {' or '.join(places)}."


def _explain(problem: Problem, strays: Mapping[str, str], document: TomlLayers) -> Problem:
    """The problem with the section that the key belongs to and the file that it comes from."""
    key = ".".join(split(problem.path))
    text, origin = strays.get(key, problem.text), document.origin(key)
    return Problem(problem.path, text if origin in (COMMAND_LINE, DEFAULT) else f"{text} (from {origin})")
