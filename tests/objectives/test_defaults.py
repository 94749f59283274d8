"""Which objective a recipe gets that names none."""

import pytest

from anyformer.core.discovery import discover
from anyformer.data.preparation.contents import Contents
from anyformer.objectives.objective import Objective

FORMS = {
    "text": Contents(),
    "pair": Contents(pair=True),
    "labelled_pair": Contents(pair=True, classes=("yes", "no")),
    "classes": Contents(classes=("yes", "no")),
    "numbers": Contents(numbers=True),
    "tags": Contents(tags=("noun",)),
    "choices": Contents(choices=3, classes=("0", "1")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", ["decoder", "encoder", "encoder_decoder"])
def test_every_form_of_data_has_one_default_for_every_kind_of_model(form: str, model: str) -> None:
    discover()
    assert FORMS[form].form == form
    kinds = [kind for kind, cls in Objective.kinds.items() if model in cls.default_for.get(form, ())]
    assert len(kinds) == 1, kinds
