"""What a learning test found out: shown, and with `--store` kept."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "learning.jsonl"
Store = Callable[[Mapping[str, float]], None]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """Figures of this test, as a line of docs/results/learning.jsonl: what was seen, and how to see it again."""

    def keep(figures: Mapping[str, float]) -> None:
        rounded = {name: round(value, 4) for name, value in figures.items()}
        test = request.node.nodeid
        line = json.dumps({"test": test, "figures": rounded, "command": f"pytest '{test}' --store"})
        print(line)
        if request.config.getoption("--store"):
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            others = [it for it in _stored() if json.loads(it)["test"] != test]
            RESULTS.write_text("".join(f"{it}\n" for it in sorted([*others, line])), encoding="utf-8")

    return keep


def _stored() -> list[str]:
    return RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
