"""What training needs of the operating system: locks that end with their process, and peak memory in bytes."""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.data.processes import forked

from anyformer.errors import SpecError
from anyformer.ops import devices
from anyformer.training.runs import run_folder as folder
from anyformer.training.runs.run_folder import locked


def holder(path: Path) -> int:
    """A process that holds the lock of a run folder until it is killed."""

    def hold() -> None:
        with locked(path):
            (path / "held").touch()
            time.sleep(60)

    process = forked(hold)
    while not (path / "held").exists():
        time.sleep(0.01)
    return process


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE_S", 0.2)
    process = holder(tmp_path / "run")
    with pytest.raises(SpecError, match="another process is training there"), locked(tmp_path / "run"):
        pass
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with locked(tmp_path / "run"):  # the lock file of the killed process is still there, and blocks nobody
        assert (tmp_path / "run" / ".lock").exists()


def test_a_folder_that_stays_empty_is_removed_with_its_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_every_platform(platform: str, unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS counts ru_maxrss in bytes, Linux in KiB."""
    usage = SimpleNamespace(getrusage=lambda who: SimpleNamespace(ru_maxrss=5000), RUSAGE_SELF=0)
    monkeypatch.setattr(devices, "resource", usage)
    monkeypatch.setattr(sys, "platform", platform)
    assert devices.peak_bytes(torch.device("cpu")) == 5000 * unit


def test_peak_memory_is_known_where_resource_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "resource", None)  # as on Windows, where psutil knows the peak
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=7))
    monkeypatch.setattr(devices.psutil, "Process", lambda: process)
    assert devices.peak_bytes(torch.device("cpu")) == 7
