"""Cells of an experiment: computed once each, in order, and stored as soon as they are known."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from anyformer.analysis.parallel_cells import in_parallel

PROGRAM = """
import os
import time
from pathlib import Path
from anyformer.analysis.parallel_cells import in_parallel

def cell(folder, number):
    (folder / f"{number}.pid").write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    in_parallel(cell, [(0,), (1,)], Path("cells"))
"""


def product(folder: Path, one: int, other: int) -> dict[str, int]:
    """Leaves a file for each call, to be counted."""
    (folder / f"{one}-{other}.called").touch(exist_ok=False)
    return {"product": one * other}


@pytest.mark.slow  # each process imports torch
def test_results_come_in_the_order_of_the_cells_and_none_is_computed_twice(tmp_path: Path) -> None:
    cells = [(3, 1), (2, 5), (1, 1)]
    assert in_parallel(product, cells[:2], tmp_path) == [{"product": 3}, {"product": 10}]
    stored = tmp_path / "product.jsonl"
    with stored.open("a") as file:
        file.write('{"cell": [1, 1], "resu')  # a process that was killed while it wrote
    assert in_parallel(product, cells, tmp_path) == [{"product": 3}, {"product": 10}, {"product": 1}]
    assert len(list(tmp_path.glob("*.called"))) == 3
    assert in_parallel(product, cells, tmp_path) == [{"product": 3}, {"product": 10}, {"product": 1}]


@pytest.mark.slow  # each process imports torch
def test_cells_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    started = tmp_path / "cells" / "0.pid"
    while not (started.exists() and started.read_text(encoding="utf-8")):
        assert parent.poll() is None
        time.sleep(0.1)
    child = psutil.Process(int(started.read_text(encoding="utf-8")))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone
