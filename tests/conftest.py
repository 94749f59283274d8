"""Every test starts from the same seed on one thread; `--shapes` checks every annotated shape at run time."""

import gc
import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: a process forked beside other threads hangs
gc.disable()  # until all tests are collected: nearly all that imports make stays

CORE = ("frame", "linear", "masks", "model", "part", "positions", "states", "taps")
SHAPED = ["anyformer.ops", "anyformer.parts", "anyformer.models", *(f"anyformer.core.{name}" for name in CORE)]

SHAPED_TESTS = ("core", "ops", "parts", "models")
"""Folders whose tests `make test` runs with shapes checked, which doubles their time: those of the layers that have
annotated shapes. All others, and all that compile, run without."""
HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shapes", action="store_true", help="check jaxtyping's annotations of anyformer at run time")
    parser.addoption("--unshaped", action="store_true", help="leave out what `make test` runs with --shapes")
    parser.addoption("--store", action="store_true", help="keep the figures of learning tests in docs/results")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # the process that only starts workers: it need not import torch, nor they wait until it has
    import torch

    torch.set_num_threads(1)
    # Tests kill processes, never the machine, and what a process wrote survives it without a flush to the disk.
    os.fsync = lambda handle: None
    torch.manual_seed(0)  # devices that start later remember it; for each test this would write its whole stack down
    if config.getoption("--shapes"):  # before anything imports anyformer, or the hook sees nothing
        from tests.checking import check_shapes

        check_shapes(SHAPED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that would only be imported in order to deselect all of their tests."""
    is_shaped = collection_path.relative_to(HERE).parts[:1] in [(name,) for name in SHAPED_TESTS]
    if not (config.getoption("--unshaped") and is_shaped and collection_path.suffix == ".py"):
        return None
    return True if "mark.compile" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {path: path.relative_to(HERE).parts[0] for path in {item.path for item in items}}
    for item in items:
        if folders[item.path] in SHAPED_TESTS:
            item.add_marker("shaped")


def pytest_collection_finish() -> None:
    gc.freeze()  # what there is now stays to the end: the collector need not look at a million objects again and again
    gc.set_threshold(5_000, 10, 100)  # the defaults cost 4% of the time, most of it for full collections
    gc.enable()


@pytest.fixture(autouse=True)
def same_seed() -> None:
    import torch

    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
