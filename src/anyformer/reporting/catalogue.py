"""The catalogue of every installed kind: its description, options, slots, and its cost at a stated size."""

import difflib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from anyformer.core import Cost, CostTree, PartSpec, Spec, Work, cost
from anyformer.core.discovery import PARTS, discover
from anyformer.core.fields import did_you_mean
from anyformer.core.schema import Option, describe, family_name, hints_of
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.models.presets import preset_names
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.joins.replace import Replace
from anyformer.training import load

PERSPECTIVES = {
    "vanilla": "from the original Transformer, or older",
    "efficiency": "less time or memory for long sequences",
    "generalisation": "learns more from less data: structure, regularisation, pre-training",
    "adaptation": "designed for a task or a kind of data",
}
"""The lectures' taxonomy of architectures."""
_EFFICIENT = (
    "block_local", "dilated", "dynamic_conv", "factorized", "gated_linear", "global_tokens", "lightweight_conv",
    "linear_attention", "linformer", "mamba", "mamba2", "min_gru", "random_blocks", "s4", "s4d", "shared", "strided",
    "transformer_xl", "window",
)  # fmt: skip
_ADAPTED = ("permutation", "prefix")
_ORDER = ("models", "mixers", "channels", "combine", "masks", "positions", "norms", "joins")
_WORK = Work(batch=1, length=1024)
_DIM = 512


@dataclass(frozen=True)
class CatalogueEntry:
    """One kind of the catalogue."""

    cls: type[Spec]

    @property
    def kind(self) -> str:
        return self.cls.kind

    @property
    def slot(self) -> str:
        """The folder of its module below `anyformer.parts`; for a kind defined elsewhere, the name of its family."""
        path = self.cls.__module__.split(".")
        ours = self.cls.__module__.startswith(f"{PARTS}.") and len(path) > 3
        return path[2] if ours else f"{family_name(self.cls.family)}s"

    @property
    def perspective(self) -> str | None:
        """One of `PERSPECTIVES`, for the architectures of the lectures; None for every other kind."""
        if not self.cls.__module__.startswith((f"{PARTS}.", "anyformer.models.", "anyformer.core.")):
            return None
        return "efficiency" if self.kind in _EFFICIENT else "adaptation" if self.kind in _ADAPTED else "vanilla"

    @property
    def family_names(self) -> set[str]:
        """The names by which its family can be selected: mixers, mixer, part, parts, PartSpec."""
        family = self.cls.family
        return {self.slot, self.slot.removesuffix("s"), family_name(family), f"{family_name(family)}s", family.__name__}

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.cls) or "").split("\n\n")[0]

    @property
    def text(self) -> str:
        """The docstring of its module with idea, equation and paper; its summary if the module has several kinds."""
        module = sys.modules[self.cls.__module__]
        alone = sum(entry.cls.__module__ == self.cls.__module__ for entry in catalogue()) == 1
        return inspect.getdoc(module) or "" if alone else self.summary

    @property
    def options(self) -> tuple[Option, ...]:
        return describe(self.cls)

    def to_dict(self) -> dict[str, Any]:
        """The entry in the output of `parts --json`."""
        return {
            "family": self.slot,
            "kind": self.kind,
            "summary": self.summary,
            "options": [asdict(option) for option in self.options],
            "perspective": self.perspective,
            "limits": dict(self.cls.limits),
        }


def catalogue() -> list[CatalogueEntry]:
    """Every installed kind, sorted by slot and name."""
    discover()
    entries = [CatalogueEntry(cls) for family in Spec.__subclasses__() for cls in family.kinds.values()]
    order = {slot: place for place, slot in enumerate(_ORDER)}
    return sorted(entries, key=lambda entry: (order.get(entry.slot, len(order)), entry.slot, entry.kind))


def select(kind: str | None, family: str | None, perspective: str | None) -> list[CatalogueEntry]:
    """The kinds that match every filter that is not None. An unknown name is an error."""
    entries = catalogue()
    if family is not None:
        slots = {entry.slot for entry in entries}
        entries = [entry for entry in entries if family in entry.family_names] or _refuse("family", family, slots)
    if perspective is not None:
        if perspective not in PERSPECTIVES:
            _refuse("perspective", perspective, set(PERSPECTIVES))
        entries = [entry for entry in entries if entry.perspective == perspective]
    if kind is not None:
        near = difflib.get_close_matches(kind, sorted({entry.kind for entry in entries}), 3)
        entries = [entry for entry in entries if entry.kind == kind]
        if not entries:  # without the list of known kinds, which has more than a hundred
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            raise SpecError(f"no part is called {kind!r}.{guess} All of them: anyformer parts")
    return entries


def slot_text(slot: str) -> str:
    """The first line of documentation for a slot: from its package, otherwise from its family."""
    folders = (sys.modules.get(f"{parent}.{slot}") for parent in (PARTS, "anyformer"))
    families = (family for family in Spec.__subclasses__() if f"{family_name(family)}s" == slot)
    documented = next((thing for thing in (*folders, *families) if thing is not None), None)
    return (inspect.getdoc(documented) or "").split("\n")[0]


def sample(cls: type[Spec]) -> Spec:
    """A value of this kind: built from defaults if no option is required, otherwise its first example."""
    return cls.examples()[0] if any(option.required for option in describe(cls)) else cls()


def holders(family: type[Spec]) -> list[str]:
    """The fields that accept a kind of this family, such as `branch.part`."""
    return sorted(
        f"{family_name(cls)}.{name}"
        for cls in _every(Spec)
        if not inspect.isabstract(cls) and (cls.kind or not cls.kinds)
        for name in (field.name for field in fields(cls))
        if family in _mentioned(hints_of(cls)[name])
    )


def presets_of(kind: str) -> list[str]:
    """The names of the presets whose model is of this kind."""
    return [name for name in preset_names() if load(name).kind == kind]


def part_cost(cls: type[PartSpec]) -> tuple[Cost, str] | None:
    """The cost of a part alone, and its input size as text: a typical size, or a tiny one if the part does not support
    that; None if neither."""
    small = [(part, 32, Work(batch=1, length=16)) for part in cls.examples()[:1]]
    for part, dim, work in ((sample(cls), _DIM, _WORK), *small):
        assert isinstance(part, PartSpec)
        try:
            tree = _model_with(part, dim, work)
        except SpecError:
            continue
        node = next((child for child in tree.children if child.name == "decoder"), tree)
        for name in ("stack", "layers", "0", "branches", "0", "part"):
            node = next(child for child in node.children if child.name == name)
        total = tree.total  # the state is counted for the model, and only this part has one
        spent = replace(node.total, state_bytes=total.state_bytes, state_bytes_per_token=total.state_bytes_per_token)
        return spent, f"dim {dim}, batch {work.batch}, length {work.length}"
    return None


def _model_with(part: PartSpec, dim: int, work: Work) -> CostTree:
    """The cost of a model with this part alone: a decoder beside an encoder; an encoder if it cannot be causal."""
    if "causal" in part.limits:
        return cost(Encoder(vocab=1, dim=dim, stack=_stack(part), max_len=work.length), work)
    encoder = Encoder(vocab=1, dim=dim, stack=_stack(MLP()), max_len=work.length)
    decoder = Decoder(vocab=1, dim=dim, stack=_stack(part), max_len=work.length, head=Hidden())
    return cost(EncoderDecoder(encoder=encoder, decoder=decoder), work)


def _stack(part: PartSpec) -> Stack:
    return Stack(blocks={"layer": Block(branches=(Branch(part=part, place="none", join=Replace()),))}, depth=1)


def _refuse(what: str, name: str, known: set[str]) -> list[CatalogueEntry]:
    raise SpecError(f"no {what} is called {name!r}.{did_you_mean(name, known)}")


def _every(cls: type[Spec]) -> Iterator[type[Spec]]:
    for child in cls.__subclasses__():
        yield child
        yield from _every(child)


def _mentioned(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in get_args(hint):
        yield from _mentioned(inner)
