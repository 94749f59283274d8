"""Spec classes made from the catalogue: the fields, types, defaults and help texts of the real classes, without torch.

`decode`, `schema` and `describe` work on them as on the real classes and raise the same errors. What only code knows,
the `check` of a class, they do not know: `reads` says which keys such a check depends on.
"""

from dataclasses import MISSING, dataclass, field
from functools import cache, partial, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal

from anyformer.core.discovery import catalogue
from anyformer.core.fields import Range
from anyformer.core.spec import Spec, decode

_PLAIN = {"integer": int, "number": float, "boolean": bool, "string": str, "none": type(None)}


@dataclass(frozen=True, kw_only=True)
class StandIn(Spec):
    """Base of the classes that stand in for real ones."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Dotted keys of this table that the `check` of the real class reads; "" for all of them."""

    @classmethod
    def load_kind(cls, kind: str) -> None:
        """Does nothing: all built-in kinds are known, and others do not stand in for real ones."""


@cache
def stand_ins() -> dict[str, type[StandIn]]:
    """Name of a class -> its stand-in, for all families, kinds and sections of recipes and studies."""
    rows = catalogue()["classes"]
    classes: dict[str, Any] = {name: type(name, (StandIn,), {"__doc__": row["doc"]}) for name, row in rows.items()}
    kinds: dict[str, dict[str, Any]] = {row["family"]: {} for row in rows.values()}
    for name, row in rows.items():
        cls = classes[name]
        if row["kind"]:
            kinds[row["family"]][row["kind"]] = cls
        cls.family, cls.kind, cls.kinds = classes[row["family"]], row["kind"], kinds[row["family"]]
        cls.by_name, cls.limits, cls.reads = row["by_name"], row["limits"], tuple(row["reads"])
        cls.__annotations__ = {option["name"]: _hint(option["type"], classes) for option in row["fields"]}
        for option in row["fields"]:
            setattr(cls, option["name"], _field(option, cls.__annotations__[option["name"]]))
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
    return classes


def _field(option: dict[str, Any], hint: Any) -> Any:
    notes, default = {"help": option["help"]} if option["help"] else {}, option.get("default", MISSING)
    if isinstance(default, list | dict):
        return field(default_factory=partial(decode, hint, default), metadata=notes)
    return field(default=default, metadata=notes)


def _hint(data: Any, classes: dict[str, Any]) -> Any:
    """A type hint from the form in which the catalogue has it: "integer", ["list", "string"], ["spec", "PartSpec"]."""
    if isinstance(data, str):
        return _PLAIN[data]
    form, *inside = data
    if form == "spec":
        return classes[inside[0]]
    if form == "choice":
        return Literal[tuple(inside)]
    if form == "range":
        return Annotated[_hint(inside[0], classes), Range(**inside[1])]
    hints = [_hint(each, classes) for each in inside]
    if form == "or":
        return reduce(or_, hints)
    return tuple[hints[0], ...] if form == "list" else dict[str, hints[0]]  # type: ignore[valid-type]
