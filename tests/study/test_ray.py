"""The same study on a real local Ray cluster gives the same numbers. Skipped where the extra is not installed."""

from pathlib import Path

import pytest
from tests.study.small import measured, tiny


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_cluster_finds_what_this_machine_finds(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    local = tiny(tmp_path, "study.jobs=2", name="local")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        there = tiny(tmp_path, "study.launch=ray", name="there")
    finally:
        ray.shutdown()
    assert measured(there) == measured(local)
