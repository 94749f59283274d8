"""Checks that an objective and a model suit a packing, before anything is built."""

from collections.abc import Iterable

from anyformer.core import ModelSpec
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective

_ONE_DOCUMENT = 'or one document a row: data.packing = "bucket"'
_ONE_PAIR = 'or one pair a row: data.packing = "bucket"'


def refuse_packed(objective: Objective, model: ModelSpec, prepared: Prepared) -> None:
    """SpecError if rows hold several texts and the objective, a model or one of its parts cannot separate them."""
    models, where = (model, *objective.companions(model).values()), f"data.packing={prepared.packing.kind}"
    if prepared.packed_pairs:
        _refuse_objective(objective, where)
        for one in models:
            _refuse_one_stack(one, where)
            _refuse_parts(one, ("packing", "sources"), where, _ONE_PAIR)
    elif prepared.packing.marks_documents and not all(each.relays for each in _plain(objective)):
        for one in models:
            if not one.needs_source:  # else a row is a source and a target, and nothing more
                _refuse_parts(one, ("packing",), where, _ONE_DOCUMENT)


def _refuse_objective(objective: Objective, where: str) -> None:
    for each in _plain(objective):
        if not each.packed_pairs:
            raise SpecError(f'{where}: {each.kind} reads no packed pairs. Use "seq2seq", {_ONE_PAIR}.')


def _refuse_one_stack(model: ModelSpec, where: str) -> None:
    if not model.needs_source:
        raise SpecError(
            f"{where}: a {model.kind} reads a pair in one row, which holds nothing else. "
            f"Use an encoder_decoder, {_ONE_PAIR}."
        )


def _refuse_parts(model: ModelSpec, limits: Iterable[str], where: str, instead: str) -> None:
    """Refuses parts with one of these limits: packing (mixes the documents of a row), sources (mixes their sources)."""
    for path, spec in model.walk():
        if reason := next((spec.limits[limit] for limit in limits if limit in spec.limits), None):
            raise SpecError(f"{where}: {path}: {spec.kind}: {reason}. Use another part, {instead}.")


def _plain(objective: Objective) -> Iterable[Objective]:
    """The objectives inside one that combines several, or the objective itself."""
    inside = [spec for _, spec in objective.walk() if isinstance(spec, Objective)]
    return inside if len(inside) == 1 else [leaf for each in inside[1:] for leaf in _plain(each)]
