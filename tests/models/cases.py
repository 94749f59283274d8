"""Which presets a test of the fast suite runs on."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from anyformer.core import ModelSpec
from anyformer.training import load as load_preset
from anyformer.training.recipes.toml_layers import PRESETS


@cache  # many tests need the same ones, and specs are frozen
def load(name: str) -> ModelSpec:
    return load_preset(name)


def one_of_each_kind(presets: Iterable[str]) -> list[Any]:
    """The names of presets: in the fast suite if the file of one names a kind that no file before does, else in the
    slow suite."""
    seen: set[str] = set()
    cases = []
    for name in presets:
        kinds = set(re.findall(r'kind = "(\w+)"', (PRESETS / f"{name}.toml").read_text(encoding="utf-8")))
        cases.append(pytest.param(name, marks=pytest.mark.slow if kinds <= seen else (), id=name))
        seen |= kinds
    return cases
