"""Every test starts from the same seed on one thread; `--shapes` checks every annotated shape at run time."""

import pytest
import torch
from jaxtyping import install_import_hook

CORE = ("frame", "linear", "masks", "model", "part", "positions", "states", "taps")
SHAPED = ["anyformer.ops", "anyformer.parts", "anyformer.models", *(f"anyformer.core.{name}" for name in CORE)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shapes", action="store_true", help="check jaxtyping's annotations of anyformer at run time")
    parser.addoption("--store", action="store_true", help="keep the figures of learning tests in docs/results")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    if config.getoption("--shapes"):  # before anything imports anyformer, or the hook sees nothing
        install_import_hook(SHAPED, "beartype.beartype")


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)
