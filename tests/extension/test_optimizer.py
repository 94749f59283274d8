"""An optimiser from outside the package, in one file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run, train

CODE = '''
"""Sign descent: w <- w - lr sign(g)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.optim.optimizer import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class SignDescent(OptimizerSpec, kind="sign_descent"):
    """Along the sign of the gradient."""

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return SignStepper(groups, {})

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {}


class SignStepper(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for tensor in group["params"]:
                tensor -= group["lr"] * tensor.grad.sign()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("optimizer"), "outside_optimizer", CODE) as folder:
        train("optimizer.kind=sign_descent", "optimizer.lr=0.01")
        yield folder


def test_an_optimizer_is_shown(folder: Path) -> None:
    assert "weight_decay" in run("parts", "sign_descent")
    assert "sign_descent" in run("config", "show", "run/recipe.toml")


def test_a_run_of_an_optimizer_evaluates_and_answers(folder: Path) -> None:
    assert "loss" in run("evaluate", "run", "--json")
    assert "finish" in run("generate", "run", "the cat", "--max-new", "3", "--json")
