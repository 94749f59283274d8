"""Who can learn from rows that hold several pairs: asked before anything is built."""

from collections.abc import Iterable

from anyformer.core import ModelSpec
from anyformer.data.prepared import Prepared
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective

_LIMITS = ("packing", "sources")
"""Of what cannot tell the documents of a row apart, and of what cannot tell the sources."""
_ONE_EACH = 'or one pair a row: data.packing = "bucket"'


def refuse_packed_pairs(objective: Objective, model: ModelSpec, prepared: Prepared) -> None:
    """Says so where the data pack pairs, and the objective, a model or a part of one cannot tell them apart."""
    if not prepared.packed_pairs:
        return
    for each in _plain(objective):
        if not each.packed_pairs:
            raise SpecError(f'data.packing=pack: {each.kind} reads no packed pairs. Use "seq2seq", {_ONE_EACH}.')
    for one in (model, *objective.companions(model).values()):
        _refuse_model(one)


def _refuse_model(model: ModelSpec) -> None:
    if not model.needs_source:
        raise SpecError(
            f"data.packing=pack: a {model.kind} reads a pair in one row, which holds nothing else. "
            f"Use an encoder_decoder, {_ONE_EACH}."
        )
    for path, spec in model.walk():
        if reason := next((spec.limits[limit] for limit in _LIMITS if limit in spec.limits), None):
            raise SpecError(f"data.packing=pack: {path}: {spec.kind}: {reason}. Use another part, {_ONE_EACH}.")


def _plain(objective: Objective) -> Iterable[Objective]:
    """Those inside one that combines them, or itself."""
    found = [spec for _, spec in objective.walk() if isinstance(spec, Objective)]
    return found if len(found) == 1 else [leaf for each in found[1:] for leaf in _plain(each)]
