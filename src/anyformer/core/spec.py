"""Specs: choices as values, frozen dataclasses that join a family by their `kind`.

A direct subclass of `Spec` opens a family (parts, norms, masks, ...); a subclass of a family joins it with
`class Window(MaskRule, kind="window")`. Nothing else registers it. `decode` makes specs of plain data.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from inspect import getattr_static, isfunction, unwrap
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from cattrs import (
    AttributeValidationNote,
    ClassValidationError,
    Converter,
    IterableValidationError,
    IterableValidationNote,
    StructureHandlerNotFoundError,
)
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from anyformer.core.discovery import PACKAGE, built_in_class, discover, import_kind
from anyformer.core.fields import (
    changed_leaves,
    declared,
    describes_fields,
    did_you_mean,
    field_hints,
    float_fields,
    is_text,
    scalar,
    shown,
    strict_converter,
    with_floats,
)
from anyformer.core.plain_data import assign
from anyformer.core.readable_numbers import listed
from anyformer.errors import Problem, SpecError, join_path

S = TypeVar("S", bound="Spec")

KINDS_SHOWN = 5
"""Kinds that have a key, as many as a message names."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A choice, as a value."""

    kind: ClassVar[str] = ""
    family: ClassVar[type["Spec"]]
    kinds: ClassVar[dict[str, type["Spec"]]]
    limits: ClassVar[Mapping[str, str]] = {}
    """Properties that a kind cannot have, and why; the conformance suite checks that this is true."""
    perspective: ClassVar[Literal["efficiency", "generalisation", "adaptation"] | None] = None
    """What a variant of the Transformer is for: efficiency, generalisation or adaptation; None for all other kinds."""
    by_name: ClassVar[bool] = False
    """True: a string is short for a table: "pack" for {kind = "pack"}."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Abstract methods of the family that a kind can do without."""
    docstring: ClassVar[str] = ""
    """The docstring as it was written; `__doc__` describes the fields as well."""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        super().__init_subclass__()
        cls.docstring = vars(cls).get("__doc__") or ""
        describes_fields(cls)
        if Spec in cls.__bases__:
            cls.family, cls.kinds = cls, {}
        if kind is None:
            return
        _refuse_taken(cls, kind)
        if missing := [name for name in _abstract_methods(cls) if name not in cls.optional]:
            family = cls.family
            raise SpecError(
                f"{cls.__name__}: every {family.__name__} defines {', '.join(missing)}, and this class does not. "
                f"Add it; {family.__module__}.{family.__name__} says what it returns."
            )
        cls.kind = kind
        cls.kinds[kind] = cls

    def __new__(cls, *values: object, **named: object) -> Self:
        """Refuses what the generated `__init__` would refuse, with the names of the fields."""
        known = _field_names(cls)
        if unknown := [name for name in named if name not in known]:
            text = f"{cls.__name__} has no such field.{did_you_mean(unknown[0], known)}"
            raise SpecError(problems=[Problem(unknown[0], text)])
        if values:
            value, names = shown(values[0]), ", ".join(known) or "none"
            example = f", such as {known[0]}={value}" if known else ""
            raise SpecError(f"{cls.__name__}: name the value {value}{example}. Fields: {names}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list) and get_origin(hints_of(type(self))[field.name]) is tuple:
                object.__setattr__(self, field.name, tuple(value))
        if problems := list(self._field_problems()):
            raise SpecError(problems=problems)
        for name, hint in float_fields(cast(Any, type(self))).items():
            object.__setattr__(self, name, with_floats(getattr(self, name), hint))
        self.check()

    def check(self) -> None:
        """Raises SpecError where fields contradict each other."""

    @classmethod
    def examples(cls) -> "tuple[Self, ...]":
        """Small values of this kind, for the tests that every kind passes."""
        return (cls(),)

    @classmethod
    def load_kind(cls, kind: str) -> None:
        """Imports the module of a kind of this family; all modules that may define one if the kind is not known."""
        import_kind(cls.family.__name__, kind)

    @classmethod
    def load_kinds(cls) -> None:
        """Imports all modules that may define a kind of this family."""
        discover(cls.family.__name__)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with kinds, never import paths; None is left out."""
        head = {"kind": self.kind} if self.kind else {}
        values = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return head | {name: value for name, value in values.items() if value is not None}

    def with_(self, path: str, value: Any) -> Self:
        """The same spec but for one dotted key: `spec.with_("stack.blocks.a.branches.0.part.heads", 8)`."""
        data = self.to_dict()
        assign(data, path, plain(value))
        return decode(type(self), data) if not self.kind else cast(Self, decode(self.family, data))

    def diff(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Dotted key -> (mine, theirs), for every key in which they differ."""
        if not isinstance(other, Spec):
            raise SpecError(problems=[Problem("other", f"expected a spec, got {shown(other)}.")])
        return changed_leaves(self.to_dict(), other.to_dict())

    def digest(self) -> str:
        """A hash that equal specs share on every machine."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def walk(self, path: str = "") -> "Iterator[tuple[str, Spec]]":
        """This spec and every spec inside it, with dotted paths."""
        yield path, self
        for field in fields(self):
            yield from _walk(getattr(self, field.name), f"{path}.{field.name}" if path else field.name)

    def _field_problems(self) -> Iterator[Problem]:
        """Wrong types, choices and ranges of values that Python code sets; plain data are checked when decoded."""
        for name, types, bounds in declared(cast(Any, type(self))):
            value = getattr(self, name)
            if types and (not isinstance(value, types[0]) or (isinstance(value, bool) and bool not in types[0])):
                yield Problem(name, f"expected {types[1]}, got {shown(value)}.")
            elif isinstance(value, str) and not is_text(value):
                yield Problem(name, f"{shown(value)} is not valid UTF-8, so no recipe can hold it. Rename it.")
            elif bounds and isinstance(value, int | float) and (refusal := bounds.refusal(value)):
                yield Problem(name, f"{refusal}, got {shown(value)}.")
            elif not types:
                yield from _mismatches(value, hints_of(type(self))[name], name)


def _refuse_taken(cls: type[Spec], kind: str) -> None:
    """SpecError if another class has this kind: one that is registered, or a built-in one that is not imported yet.
    The class outside this package is the one to be renamed, whichever was imported first."""
    renamed, other = cls, cls.kinds.get(kind)
    if other is not None and _place(cls) == PACKAGE:
        renamed, other = other, cls
    name, place = (other.__name__, _place(other)) if other is not None else (None, PACKAGE)
    if name is None and _place(cls) != PACKAGE == _place(cls.family):
        name = built_in_class(cls.family.__name__, kind)
    if name is not None:
        raise SpecError(
            f"{renamed.__name__} ({_place(renamed)}): the kind {kind!r} is taken by {name} ({place}). "
            f"Choose another kind for {renamed.__name__}."
        )


def _place(cls: type[Spec]) -> str:
    """The name of this package for its own classes, and the file of any other class."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__.partition(".")[0] == PACKAGE:
        return PACKAGE
    return (module and module.__dict__.get("__file__")) or cls.__module__


def _abstract_methods(cls: type[Spec]) -> list[str]:
    """The names of methods and properties whose only statement is `raise NotImplementedError`."""
    members = {name: getattr_static(cls, name) for name in dir(cls)}
    functions = {name: member.fget if isinstance(member, property) else member for name, member in members.items()}
    return [
        name
        for name, function in functions.items()
        if isfunction(function) and unwrap(function).__code__.co_names == ("NotImplementedError",)
    ]


def decode(family: type[S], data: Any, path: str = "") -> S:
    """Plain data -> spec. Strict about types and names; raises one SpecError that lists everything wrong."""
    try:
        return _CONVERTER.structure(data, family)
    except Exception as error:
        raise SpecError(problems=_problems(error, path)) from None


def kind_of(family: type[S], kind: str) -> type[S]:
    """The class behind a kind, found among the installed parts if it is not known yet."""
    if kind not in family.kinds:
        family.load_kind(kind)
    if kind not in family.kinds:
        name = family.family.__name__
        wrapped = ", or torch_part(...) in Python" if name == "PartSpec" else ""
        hint = f"For a kind of your own, load its file first: anyformer --import FILE{wrapped}."
        raise SpecError(f"no {name} is called {kind!r}.{did_you_mean(kind, family.kinds)} {hint}")
    return cast(type[S], family.kinds[kind])


class _NameForTable(SpecError):
    """The name of a kind where its table is expected."""

    def __init__(self, kind: str):
        super().__init__(f"expected a table, got {kind!r}.")
        self.kind = kind


_CONVERTER = strict_converter()


def _spec_hook(cls: type[Spec], converter: Converter) -> Callable[[Any, Any], Spec]:
    # the kinds of a family may not be imported yet
    family = not cls.kind and (cls.kinds or not fields(cls) or _abstract_methods(cls))
    structure = None if family else make_dict_structure_fn(cls, converter)

    def hook(value: Any, _: Any) -> Spec:
        if isinstance(value, cls):
            return value
        if cls.by_name and isinstance(value, str):
            value = {"kind": value}
        if isinstance(value, str) and structure is None:
            raise _NameForTable(kind_of(cls, value).kind)
        if not isinstance(value, Mapping):
            raise SpecError(f"expected a table, got {shown(value)}.{_example(value, cls)}")
        kind = value.get("kind", cls.kind)
        if not isinstance(kind, str):
            raise SpecError(problems=[Problem("kind", f"expected a string, got {shown(kind)}.")])
        if cls.kind and kind != cls.kind:
            raise SpecError(f"expected kind {cls.kind!r}, got {kind!r}.")
        if structure is not None:
            return structure({key: item for key, item in value.items() if key != "kind" or not cls.kind}, cls)
        if not kind:
            cls.load_kind("")
            raise SpecError(f'say which one: kind = "...". Known: {", ".join(sorted(cls.kinds))}.')
        return converter.structure(value, kind_of(cls, kind))

    return hook


_CONVERTER.register_structure_hook_factory(lambda hint: isinstance(hint, type) and issubclass(hint, Spec), _spec_hook)


def _problems(error: BaseException, path: str) -> Iterator[Problem]:
    """Flattens cattrs' tree of errors."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        for inner in error.exceptions:
            yield from _problems(inner, join_path(path, _key(inner)))
    elif isinstance(error, _NameForTable):
        yield Problem(path, f"{error} Write {join_path(path, 'kind')}={error.kind}")
    elif isinstance(error, SpecError):
        yield from (problem.under(path) for problem in error.problems)
    elif isinstance(error, ForbiddenExtraKeysError):
        yield from (no_such_key(error.cl, name, path) for name in sorted(error.extra_fields))
    elif isinstance(error, KeyError):
        yield Problem(path, "is missing.")
    elif isinstance(error, StructureHandlerNotFoundError):
        raise error
    else:
        yield Problem(path, str(error))


def no_such_key(cls: type[Spec], name: str, path: str, more: Iterable[str] = ()) -> Problem:
    """The problem of a key that a class does not have, with the other kinds of its family that have it. `more`: keys
    that are allowed beside the fields."""
    inner = [key for key, hint in hints_of(cls).items() if isinstance(hint, type) and name in _field_names(hint)]
    if inner:
        places = " or ".join(join_path(path, f"{key}.{name}") for key in inner)
        return Problem(join_path(path, name), f"{name} belongs to {' or '.join(inner)}: write {places}.")
    known = [*_field_names(cls), *more]
    text = f"{cls.__name__} has no such key.{did_you_mean(name, known)}"
    if cls.kind:
        cls.load_kind("")
        kinds = sorted(kind for kind, other in cls.kinds.items() if name in _field_names(other))
        known_kinds = listed(kinds, KINDS_SHOWN)
        choice = kinds[0] if len(kinds) == 1 else "KIND"
        text += f" It is a key of {known_kinds}: write {join_path(path, 'kind')}={choice} as well." if kinds else ""
    return Problem(join_path(path, name), text)


def _field_names(cls: type) -> list[str]:
    """The fields of a spec class; none for other types."""
    return [field.name for field in fields(cls)] if issubclass(cls, Spec) else []


def _key(error: BaseException) -> str:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return note.name
        if isinstance(note, IterableValidationNote):
            return f"[{note.index}]" if isinstance(note.index, int) else note.index
    return ""


def plain(value: Any) -> Any:
    """A value of a spec as plain data."""
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _mismatches(value: Any, hint: Any, path: str) -> Iterator[Problem]:
    """Values that their type hint does not allow: choices, specs, and lists and tables of them."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if all(any(_mismatches(value, choice, path)) for choice in inner):
            yield from _mismatches(value, inner[0], path)
    elif origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            yield Problem(path, f"{shown(value)} is not a choice.{did_you_mean(str(value), map(str, inner))}")
    elif origin is tuple and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _mismatches(item, inner[0], f"{path}[{index}]")
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _mismatches(item, inner[1], join_path(path, str(key)))
    elif origin in _CONTAINERS:
        yield Problem(path, f"expected {_CONTAINERS[origin]}, got {shown(value)}.")
    elif isinstance(hint, type) and issubclass(hint, Spec):
        fits = isinstance(value, hint) or (isinstance(value, Spec) and value.family is hint)  # stand-ins do not inherit
        if not fits and not (hint.by_name and isinstance(value, str)):
            yield Problem(path, f"expected a {hint.__name__}, got {shown(value)}.{_example(value, hint)}")
    elif hint is NoneType:
        if value is not None:
            yield Problem(path, f"expected nothing, got {shown(value)}.")
    elif (plain := scalar(hint)) and not isinstance(value, plain[0]):
        yield Problem(path, f"expected {plain[1]}, got {shown(value)}.")


def _example(value: Any, family: type[Spec]) -> str:
    """What to write instead of a class, a kind's name or a torch module where a spec is expected; empty for others."""
    cls = family.kinds.get(value) if isinstance(value, str) else value
    if isinstance(cls, type) and issubclass(cls, family):
        return f" Write {cls.__name__}(...)."
    if family.__name__ == "PartSpec" and callable(value):
        return " A torch module becomes a part by torch_part(name, factory)."
    if isinstance(value, Spec):
        holders = [
            name for name, hint in hints_of(family).items() if isinstance(hint, type) and isinstance(value, hint)
        ]
        return f" Write {family.__name__}({holders[0]}={type(value).__name__}(...))." if holders else ""
    if isinstance(value, str) and family.kinds:
        family.load_kinds()
        return did_you_mean(value, {cls.__name__ for cls in family.kinds.values()})
    return ""


_CONTAINERS: Mapping[Any, str] = {tuple: "a list", dict: "a table", Mapping: "a table"}


def hints_of(cls: Any) -> Mapping[str, Any]:
    """The types of a spec's fields."""
    return field_hints(cls)  # Any: the type checker takes a class of frozen values for one of them


def default_of(field: Field[Any]) -> Any:
    """The default of a field as plain data; None if there is none."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    return None if value is MISSING else plain(value)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Spec]]:
    if isinstance(value, Spec):
        yield from value.walk(path)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}.{index}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
