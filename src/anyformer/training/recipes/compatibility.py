"""Checks that an objective and a model suit a packing, before anything is built."""

from collections.abc import Iterable
from pathlib import Path

from anyformer.core import ModelSpec
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import TOKENIZER
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective
from anyformer.training.runs.run_weights import run_recipe

_ONE_DOCUMENT = 'or one document a row: data.packing = "bucket"'
_ONE_PAIR = 'or one pair a row: data.packing = "bucket"'


def refuse_other_tokenizer(objective: Objective, prepared: Prepared) -> None:
    """Raises SpecError if a model of another run knows words by other ids than the prepared data."""
    for name, folder in objective.pretrained.items():
        if Tokenizer.load(Path(folder) / TOKENIZER).fingerprint() != prepared.tokenizer.fingerprint():
            raise SpecError(
                f"objective.{name}: {folder} has another tokenizer than these data. Use its own: leave data.tokenizer "
                f"out, or set data.tokenizer.kind=file and data.tokenizer.path={Path(folder) / TOKENIZER}."
            )


def refuse_packed(objective: Objective, model: ModelSpec, prepared: Prepared) -> None:
    """Raises SpecError if rows hold several texts and the objective, a model or a part cannot separate them."""
    pretrained = (run_recipe(Path(folder)).model for folder in objective.pretrained.values())
    models = (model, *objective.companions(model).values(), *pretrained)
    where = f"data.packing={prepared.packing.kind}"
    if prepared.packed_pairs:
        _refuse_objective(objective, where)
        for one in models:
            _refuse_one_stack(one, where)
            _refuse_parts(one, ("packing", "sources"), where, _ONE_PAIR)
    elif prepared.packing.marks_documents and not all(each.relays for each in objective.parts):
        for one in models:
            if not one.needs_source:  # else a row is a source and a target, and nothing more
                _refuse_parts(one, ("packing",), where, _ONE_DOCUMENT)


def _refuse_objective(objective: Objective, where: str) -> None:
    for each in objective.parts:
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
