"""Fields of specs: their types with ranges, their help texts, and how plain data become their values.

Decoding is strict: cattrs would coerce (2.5 -> 2, "false" -> True); the hooks of `strict_converter` refuse.
"""

import ast
import difflib
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from cattrs import Converter
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory

from anyformer.errors import SpecError

C = TypeVar("C")
_LARGEST = 2**53


@dataclass(frozen=True)
class Range:
    """The values that a number may take, as part of its type: `Annotated[int, Range(low=1)]`."""

    low: int | float | None = None
    high: int | float | None = None
    below: int | float | None = None
    above: int | float | None = None
    why: str = ""
    """The reason of the upper bound, for the message."""

    def __repr__(self) -> str:
        """Only the bounds that are set: signatures in tooltips show it."""
        bounds = {name: value for name, value in vars(self).items() if name != "why" and value is not None}
        return f"Range({', '.join(f'{name}={value}' for name, value in bounds.items())})"

    def refusal(self, value: int | float) -> str | None:
        """Why `value` is out of range, or None."""
        if value != value:
            return "must be a finite number"
        if abs(value) > _LARGEST:
            return f"must be a number up to {_LARGEST:g}"
        if self.low is not None and value < self.low:
            return f"must be at least {self.low:g}"
        if self.high is not None and value > self.high:
            high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
            return f"must be at most {high}" + (f" ({self.why})" if self.why else "")
        if self.below is not None and value >= self.below:
            return f"must be below {self.below:g}"
        if self.above is not None and value <= self.above:
            return f"must be above {self.above:g}"
        return None


Count = Annotated[int, Range(low=1)]
Amount = Annotated[int, Range(low=0)]
Positive = Annotated[float, Range(above=0.0)]
Chance = Annotated[float, Range(low=0.0, below=1.0)]


def range_of(hint: Any) -> Range | None:
    """The range that a type hint declares, also inside `X | None`."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, Range)), None)
    inner = (range_of(argument) for argument in get_args(hint))
    return next((bounds for bounds in inner if bounds is not None), None)


@cache
def field_hints(cls: Any) -> Mapping[str, Any]:
    """Field name -> its type, with the range that it declares."""
    return get_type_hints(cls, include_extras=True)


@cache
def field_help(cls: type) -> Mapping[str, str]:
    """Field name -> the docstring written under it, or its `help` in the catalogue; empty where neither can be read."""
    catalogued = {field.name: field.metadata["help"] for field in fields(cls) if "help" in field.metadata}
    owners = () if catalogued else reversed(cls.__mro__[:-1])
    return catalogued or {name: text for owner in owners for name, text in _class_help(owner).items()}


@cache  # every spec reads its bases again, and reading the source of one parses its whole file
def _class_help(cls: type) -> Mapping[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


class DescribedFields:
    """The docstring of a dataclass with the help of its fields, for `help()` and tooltips, read when it is needed."""

    def __init__(self, docstring: str | None):
        self.docstring = docstring

    def __get__(self, instance: object, cls: type) -> str | None:
        if "__match_args__" not in vars(cls):  # dataclass() reads the docstring before it sets this
            return self.docstring
        helps, names = field_help(cls), [field.name for field in fields(cast(Any, cls))]
        lines = (f"{name}: {' '.join(helps[name].split())}" for name in names if name in helps)
        return "\n\n".join(filter(None, (inspect.cleandoc(self.docstring or ""), "\n".join(lines)))) or None


def describes_fields(cls: type[C]) -> type[C]:
    """Decorates a dataclass whose docstring shall describe its fields; specs do without it."""
    cls.__doc__ = DescribedFields(cls.__doc__)  # type: ignore[assignment]
    return cls


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested plain data -> (dotted key, value) pairs, in order; a list of plain values is one value."""
    if isinstance(data, Mapping) and data:
        items: Iterable[tuple[Any, Any]] = data.items()
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        items = enumerate(data)
    else:
        yield path, data
        return
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def changed_leaves(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (mine, theirs), for every key in which nested plain data differ."""
    ours, others = dict(leaves(mine)), dict(leaves(theirs))
    keys = {**ours, **others}
    return {key: (ours.get(key), others.get(key)) for key in keys if ours.get(key) != others.get(key)}


_ELSEWHERE = {
    "batch_size": "batch_tokens", "d_model": "dim", "grad_clip": "clip", "gradient_clip": "clip", "hidden_size": "dim",
    "iters": "steps", "learning_rate": "lr", "max_iters": "steps", "max_steps": "steps", "min_lr": "floor",
    "n_embd": "dim", "n_head": "heads", "n_heads": "heads", "n_layer": "depth", "n_layers": "depth",
    "num_attention_heads": "heads", "num_heads": "heads", "num_hidden_layers": "depth", "num_layers": "depth",
    "num_workers": "workers", "seq_len": "context", "vocab_size": "vocab", "warmup_steps": "warmup",
}  # fmt: skip
"""Names in other tools -> ours."""


MOST_LISTED = 40
"""Names that are listed beside a similar one; the names of all presets would hide it."""


def usual_name(word: str) -> str:
    """The name here of a setting that other tools call differently; any other word as it is."""
    return _ELSEWHERE.get(word.lower(), word)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X? Known: ...' for a name that does not exist; a long list follows only if nothing is similar."""
    options = sorted(known)
    near = [name for name in (usual_name(word),) if name in options]
    near = near or difflib.get_close_matches(word, options, 1, cutoff=0.55)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return guess if near and len(options) > MOST_LISTED else f"{guess} Known: {', '.join(options)}."


Hook = Callable[[Any, Any], Any]
PlainType = tuple[tuple[type, ...], str]
"""The Python types of a number or a word, and their name."""
_SCALARS: dict[Any, PlainType] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a string"),
}


def strict_converter() -> Converter:
    """Converts numbers, words, lists, tables and choices between them; every key must be known."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for plain in (int, bool, str):
        converter.register_structure_hook(plain, _exactly(plain))
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook_func(_made_of(Literal), _literal)
    converter.register_structure_hook_factory(_made_of(Annotated), _ranged)
    converter.register_structure_hook_factory(is_choice, _one_of)
    lists = _checked(homogenous_tuple_structure_factory, (list, tuple), "a list")
    converter.register_structure_hook_factory(_made_of(tuple), lists)
    tables = _checked(mapping_structure_factory, Mapping, "a table")
    converter.register_structure_hook_factory(_made_of(dict), tables)
    return converter


def scalar(hint: Any) -> PlainType | None:
    """The Python types that the hint of a number or a word allows, and their name; None for any other hint."""
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    choices = [choice for choice in get_args(hint) if choice is not NoneType] if optional else [hint]
    plain = get_args(choices[0])[0] if get_origin(choices[0]) is Annotated else choices[0]
    if len(choices) > 1 or plain not in _SCALARS:
        return None
    types, what = _SCALARS[plain]
    return (*types, NoneType) if optional else types, what


@cache
def float_fields(cls: Any) -> Mapping[str, Any]:
    """Field name -> type hint of each field of a spec class that holds floats, also in lists, tables or choices."""
    return {name: hint for name, hint in field_hints(cls).items() if get_origin(hint) is not ClassVar and _floats(hint)}


def _floats(hint: Any) -> bool:
    return hint is float or (get_origin(hint) is not Literal and any(map(_floats, get_args(hint))))


def with_floats(value: Any, hint: Any) -> Any:
    """The value with 0 and -0.0 as 0.0 where the hint declares floats, so that equal specs have equal digests."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return with_floats(value, inner[0])
    if origin in (Union, UnionType):
        whole = any(int in (choice, *get_args(choice)[:1]) for choice in inner)  # int | float keeps whole numbers
        for choice in () if whole else inner:
            value = with_floats(value, choice)
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) + 0.0 if abs(value) <= sys.float_info.max else value  # -0.0 + 0.0 = 0.0
    if origin is tuple and isinstance(value, tuple):
        hints = inner if len(inner) == len(value) and ... not in inner else inner[:1] * len(value)
        return tuple(map(with_floats, value, hints))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: with_floats(item, inner[1]) for key, item in value.items()}
    return value


@cache
def declared(cls: Any) -> list[tuple[str, PlainType | None, Range | None]]:
    """Field name, plain type and range of each field of a spec class; None if its hint declares none."""
    hints = field_hints(cls)
    return [(field.name, scalar(hints[field.name]), range_of(hints[field.name])) for field in fields(cls)]


def is_text(value: str) -> bool:
    """False for a file name that is not UTF-8: Python decodes its bytes to surrogates, which no file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value for a message, not longer than a line: Python refuses to print whole numbers of thousands of digits."""
    if type(value) is int and abs(value) > 10**40:
        return f"a number of about {round(value.bit_length() * math.log10(2)):,} digits"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"


def is_choice(hint: Any) -> bool:
    """True for `int | Literal["auto"]`; `X | None` is no choice but omission."""
    return get_origin(hint) in (Union, UnionType) and NoneType not in get_args(hint)


def _made_of(origin: Any) -> Callable[[Any], bool]:
    return lambda hint: get_origin(hint) is origin


def _exactly(plain: type) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is not plain:
            raise SpecError(f"expected {_SCALARS[plain][1]}, got {shown(value)}.")
        return value

    return hook


def _float(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SpecError(f"expected a finite number, got {shown(value)}.")
    return float(value)


def _literal(value: Any, hint: Any) -> Any:
    known = get_args(hint)
    if not any(value == option and type(value) is type(option) for option in known):
        raise SpecError(f"{value!r} is not a choice.{did_you_mean(str(value), map(str, known))}")
    return value


def _ranged(hint: Any, converter: Converter) -> Hook:
    """Reports a number out of range together with all other mistakes; `__post_init__` only sees a complete spec."""

    def hook(value: Any, _: Any) -> Any:
        number, bounds = converter.structure(value, get_args(hint)[0]), range_of(hint)
        if bounds and (refusal := bounds.refusal(number)):
            raise SpecError(f"{refusal}, got {shown(number)}.")
        return number

    return hook


def _one_of(hint: Any, converter: Converter) -> Hook:
    """The first choice that accepts the value; otherwise the errors of all."""

    def hook(value: Any, _: Any) -> Any:
        refusals = []
        for choice in get_args(hint):
            try:
                return converter.structure(value, choice)
            except SpecError as error:
                refusals.append(str(error))
        raise SpecError(" Or: ".join(refusals))

    return hook


def _checked(factory: Callable[..., Any], container: type | tuple[type, ...], what: str) -> Callable[..., Any]:
    def make(hint: Any, converter: Converter) -> Hook:
        inner = factory(hint, converter)

        def hook(value: Any, target: Any) -> Any:
            if not isinstance(value, container):
                raise SpecError(f"expected {what}, got {value!r}.")
            return inner(value, target)

        return hook

    return make
