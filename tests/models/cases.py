"""Which presets a test of the fast suite runs on."""

from collections.abc import Mapping
from typing import Any

import pytest

from anyformer.core import ModelSpec, Spec


def one_of_each_kind(presets: Mapping[str, ModelSpec]) -> list[Any]:
    """The names of presets: in the fast suite if one has a kind that none before it has, else in the slow one."""
    seen: set[type[Spec]] = set()
    cases = []
    for name, preset in presets.items():
        kinds = {type(spec) for _, spec in preset.walk()}
        cases.append(pytest.param(name, marks=pytest.mark.slow if kinds <= seen else (), id=name))
        seen |= kinds
    return cases
