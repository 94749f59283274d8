"""Cells of an experiment: computed once each, in order, and stored as soon as they are known."""

from pathlib import Path

import pytest

from anyformer.analysis.parallel_cells import in_parallel


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
