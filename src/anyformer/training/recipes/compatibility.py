"""Which models and objectives can learn from rows that hold several documents or pairs; checked before building."""

from collections.abc import Iterable
from pathlib import Path

from anyformer.core import ModelSpec
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective
from anyformer.training.runs.file_names import TOKENIZER
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
    """Raises SpecError if rows hold several, and the objective, a model or a part of one cannot tell them apart."""
    pretrained = (run_recipe(Path(folder)).model for folder in objective.pretrained.values())
    models = (model, *objective.companions(model).values(), *pretrained)
    if prepared.packed_pairs:
        _refuse_objective(objective)
        for one in models:
            _refuse_one_stack(one)
            _refuse_parts(one, ("packing", "sources"), _ONE_PAIR)
    elif prepared.packing == "pack" and not all(each.relays for each in objective.parts):
        for one in models:
            if not one.needs_source:  # else a row is a source and a target, and nothing more
                _refuse_parts(one, ("packing",), _ONE_DOCUMENT)


def _refuse_objective(objective: Objective) -> None:
    for each in objective.parts:
        if not each.packed_pairs:
            raise SpecError(f'data.packing=pack: {each.kind} reads no packed pairs. Use "seq2seq", {_ONE_PAIR}.')


def _refuse_one_stack(model: ModelSpec) -> None:
    if not model.needs_source:
        raise SpecError(
            f"data.packing=pack: a {model.kind} reads a pair in one row, which holds nothing else. "
            f"Use an encoder_decoder, {_ONE_PAIR}."
        )


def _refuse_parts(model: ModelSpec, limits: Iterable[str], instead: str) -> None:
    """`limits`: of what cannot tell the documents of a row apart (packing), or their sources."""
    for path, spec in model.walk():
        if reason := next((spec.limits[limit] for limit in limits if limit in spec.limits), None):
            raise SpecError(f"data.packing=pack: {path}: {spec.kind}: {reason}. Use another part, {instead}.")
