"""The page about time to quality is made from its raw files, and its tables say what the runs say."""

import pytest
from benchmarks.speedrun_page import PAGE, page

from benchmarks import leave_one_out, transfer


def test_the_page_is_made_from_its_raw_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("shift", "verdict"), [(0.05, "worse"), (-0.05, "better"), (0.001, "no evidence")])
def test_a_choice_is_judged_by_its_interval(shift: float, verdict: str) -> None:
    noise = (0.0, 0.002, -0.002, 0.001)
    arms = list(leave_one_out.ARMS)
    runs = [
        {"name": arm, "seed": seed, "best": 2.6 + 0.01 * seed + noise[(place + seed) % 4] + shift * (place == 3)}
        for place, arm in enumerate(arms)
        for seed in range(4)
    ]
    row = next(row for row in leave_one_out.table(runs) if row.startswith(f"| {arms[3]}"))
    assert row.endswith(f"| {verdict} |")


def test_the_best_rates_are_compared_over_widths() -> None:
    best = {(128, True): 1e-3, (1024, True): 1e-3, (128, False): 8e-3, (1024, False): 1e-3}
    lines = [
        {"arm": "lstm", "width": width, "rate": rate, "mup": mup, "loss": 4 + abs(rate - wanted)}
        for (width, mup), wanted in best.items()
        for rate in (5e-4, 1e-3, 8e-3)
    ]
    *_, with_mup, without = transfer.table(lines)
    assert with_mup == "| lstm | muP | 0.001 (4.000) | 0.001 (4.000) | 1 |"
    assert without == "| lstm | without | 0.008 (4.000) † | 0.001 (4.000) | 8 |"
