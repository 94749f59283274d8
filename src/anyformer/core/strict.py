"""Plain data taken at its word: cattrs coerces unless told not to (2.5 -> 2, "false" -> True); these hooks refuse."""

import math
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cattrs import Converter
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory

from anyformer.core.fields import did_you_mean, range_of
from anyformer.errors import SpecError

MAX_FLOAT = sys.float_info.max
Hook = Callable[[Any, Any], Any]


def strict_converter() -> Converter:
    """Numbers, words, lists, tables and choices between them; every key must be known."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook(int, _expect("a whole number", lambda v: type(v) is int))
    converter.register_structure_hook(bool, _expect("true or false", lambda v: type(v) is bool))
    converter.register_structure_hook(str, _expect("a string", lambda v: type(v) is str))
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook_func(_made_of(Literal), _literal)
    converter.register_structure_hook_factory(_made_of(Annotated), _ranged)
    converter.register_structure_hook_factory(is_choice, _one_of)
    lists = _checked(homogenous_tuple_structure_factory, (list, tuple), "a list")
    converter.register_structure_hook_factory(_made_of(tuple), lists)
    tables = _checked(mapping_structure_factory, Mapping, "a table")
    converter.register_structure_hook_factory(_made_of(dict), tables)
    return converter


_SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a string"),
}


def scalar(hint: Any) -> tuple[tuple[type, ...], str] | None:
    """The Python types that a hint of a number or a word allows, and their name; None: the hint is about more."""
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    rest = [choice for choice in get_args(hint) if choice is not NoneType] if optional else [hint]
    plain = get_args(rest[0])[0] if get_origin(rest[0]) is Annotated else rest[0]
    if len(rest) > 1 or plain not in _SCALARS:
        return None
    types, what = _SCALARS[plain]
    return (*types, NoneType) if optional else types, what


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


def _expect(what: str, fits: Callable[[Any], bool]) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        if not fits(value):
            raise SpecError(f"expected {what}, got {shown(value)}.")
        return value

    return hook


def _float(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_FLOAT:
        raise SpecError(f"expected a finite number, got {shown(value)}.")
    return float(value)


def _literal(value: Any, hint: Any) -> Any:
    known = get_args(hint)
    if not any(value == option and type(value) is type(option) for option in known):
        raise SpecError(f"{value!r} is not a choice.{did_you_mean(str(value), map(str, known))}")
    return value


def _ranged(hint: Any, converter: Converter) -> Hook:
    """A number out of range is told with all that is wrong beside it; `__post_init__` would only see a whole spec."""

    def hook(value: Any, _: Any) -> Any:
        number, bounds = converter.structure(value, get_args(hint)[0]), range_of(hint)
        refusal = bounds.refusal(number) if bounds else None
        if refusal:
            raise SpecError(f"{refusal}, got {shown(number)}.")
        return number

    return hook


def _one_of(hint: Any, converter: Converter) -> Hook:
    """The first choice that takes the value; else what each of them says."""

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
