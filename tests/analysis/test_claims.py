"""The verdict of every claim of the lectures, as it is measured here and now."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.claim_clauses import SHOWN

from anyformer.analysis import claim as results
from anyformer.analysis.claim import OURS, TimedClaim, claim, claims, find, result_of, stored
from anyformer.analysis.complexity import SECONDS, TIMED
from anyformer.errors import SpecError
from anyformer.reporting.claim_report import Answer

VERDICTS = {
    "ATT-04": "holds",
    "CLM-01": "holds",
    "CLM-02": "depends",
    "CLM-03": "holds",
    "CLM-04": "holds",
    "CLM-06": "holds",
    "CLM-07": "holds",
    "CLM-08": "holds",
    "CLM-10": "holds",
    "CLM-11": "depends",
    "CLM-12": "holds",
    "CLM-14": "depends",
    "CLM-16": "holds",
    "CLM-17": "holds",
    "CLM-20": "does not hold",
    "CLM-23": "holds",
    "CLM-26": "does not hold",
    "CLM-27": "depends",
    "CLM-28": "holds",
    "CLM-30": "holds",
    "OPT-07": "holds",
    "PRE-23": "holds",
    "RNN-19": "holds",
    "SSM-06": "holds",
    "TRF-07": "holds",
    "TRF-09": "holds",
    "XF-06": "holds",
    "XF-08": "depends",
    "XF-16": "depends",
}
BY_THE_CLOCK = {"ATT-09": "holds", "CLM-15": "depends"}
"""Verdicts that depend on seconds."""
LEARNED = {
    "CLM-05": "holds",
    "CLM-18": "holds",
    "CLM-19": "depends",
    "CLM-21": "holds",
    "CLM-22": "holds",
    "CLM-24": "holds",
    "CLM-29": "holds",
    "CLM-31": "depends",
    "OPT-03": "holds",
    "POS-10": "holds",
    "PRE-24": "holds",
    "RNN-21": "holds",
    "XF-13": "depends",
}


TAKE_SECONDS = (
    "ATT-04", "CLM-01", "CLM-06", "CLM-07", "CLM-08", "CLM-14", "CLM-16", "CLM-17", "CLM-20", "CLM-27", "CLM-30",
    "OPT-07", "XF-06",
)  # fmt: skip
"""Claims that take seconds to measure: in the slow suite."""
TAKE_HOURS_ON_A_CPU = ("CLM-31",)
"""Claims that are trained anew on a GPU alone: `pytest -m "learn and gpu" tests/analysis`."""


def case(name: str, shows: bool = True) -> Any:
    """A claim with the marks of its rows; `shows`: whether the test would fail without what the claim shows."""
    marks = [pytest.mark.row(*claim(name).ids), *([pytest.mark.slow] if name in TAKE_SECONDS else [])]
    marks += [pytest.mark.gpu] if shows and name in TAKE_HOURS_ON_A_CPU else []
    clauses = SHOWN.get(name, {}) if shows else {}
    marks += [pytest.mark.row(row, clause=shown) for row, shown in clauses.items()]
    return pytest.param(name, marks=marks, id=name)


def stored_case(name: str) -> Any:
    """A claim whose figures are only read: they show nothing that would have to be trained anew."""
    return case(name, shows=False)


@cache
def figures(name: str) -> Any:
    """The figures as they are measured here; seconds as they are stored, because no verdict depends on them."""
    one = claim(name)
    if not isinstance(one, TimedClaim):
        return find(one, Path()).figures
    times = {key: times for key, times in stored(OURS)[name].figures.items() if key == TIMED or key.startswith(SECONDS)}
    return {**one.count(), **times}


@pytest.mark.parametrize("name", [*map(case, VERDICTS)])
def test_a_measured_claim_has_its_verdict(name: str) -> None:
    verdict = claim(name).judge(figures(name))
    assert verdict.word == VERDICTS[name], verdict.because


@pytest.mark.parametrize("name", [*map(stored_case, BY_THE_CLOCK)])
def test_the_stored_times_of_a_claim_give_its_verdict(name: str) -> None:
    verdict = claim(name).judge(stored(OURS)[name].figures)
    assert verdict.word == BY_THE_CLOCK[name], verdict.because


@pytest.mark.parametrize("name", [*map(stored_case, LEARNED)])
def test_the_stored_figures_of_a_trained_claim_give_its_verdict(name: str) -> None:
    verdict = claim(name).judge(stored(OURS)[name].figures)
    assert verdict.word == LEARNED[name], verdict.because
    assert all(panel.title for panel in claim(name).picture(stored(OURS)[name].figures))


@pytest.mark.learn
@pytest.mark.parametrize("name", [*map(case, LEARNED)])
def test_a_claim_trained_anew_has_its_verdict(name: str, tmp_path: Path) -> None:
    verdict = claim(name).judge(find(claim(name), tmp_path).figures)
    assert verdict.word == LEARNED[name], verdict.because


def test_every_claim_is_in_one_of_the_lists() -> None:
    assert {one.ids[0] for one in claims() if not one.trains} == {*VERDICTS, *BY_THE_CLOCK}
    assert {one.ids[0] for one in claims() if one.trains} == {*LEARNED}


def test_no_row_is_answered_twice_and_every_sentence_is_one() -> None:
    rows = [row for one in claims() for row in one.ids]
    assert len(rows) == len(set(rows))
    assert all(one.says.endswith(".") and one.says[0].isupper() for one in claims())


def test_a_claim_that_nobody_trained_says_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(stored(OURS)) == {one.ids[0] for one in claims() if one.trains or one.times}
    monkeypatch.setattr(results, "OURS", tmp_path)
    answer = Answer(claim("CLM-31"), result_of(claim("CLM-31"), tmp_path))
    assert answer.word == "not trained yet" and answer.because == "anyformer claims CLM-31 --train"


@pytest.mark.parametrize(
    ("name", "row"),
    [("CLM-07", "CLM-07"), ("clm-7", "CLM-07"), ("CLM7", "CLM-07"), ("7", "CLM-07"), ("opt-7", "OPT-07")],
)
def test_an_id_may_be_short_and_in_small_letters(name: str, row: str) -> None:
    assert row in claim(name).ids


def test_an_unknown_claim_is_told_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="CLM-07"):
        claim("CLM-077")


def test_figures_survive_the_file_that_they_are_kept_in(tmp_path: Path) -> None:
    found = figures("CLM-10")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("CLM-10", {"recurrent": [1, 2, 3]}, "does not hold"),
        pytest.param("CLM-14", {"attention": [2, 1, 1, 0, 0]}, "does not hold", marks=pytest.mark.slow),
        ("CLM-04", {"Transformer": [0.5**s for s in range(96)]}, "does not hold"),
        ("CLM-23", {"with attention": [[0.97**s for s in range(64)]]}, "does not hold"),
        ("CLM-26", {"decoder": [[1.0, 0.0], [0.0, 1.0]]}, "holds"),
        ("XF-08", {"energy": [0.99] * 5}, "holds"),
    ],
)
def test_other_figures_give_another_verdict(name: str, change: dict[str, Any], word: str) -> None:
    assert claim(name).judge({**figures(name), **change}).word == word


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("CLM-18", {"LSTM": [[0.125] * 4] * 3}, "does not hold"),
        ("CLM-18", {"LSTM": [[1.0] * 4] * 3}, "does not hold"),
        ("CLM-18", {"RNN": [[0.125] * 3 + [0.4]] * 3}, "does not hold"),
        ("CLM-21", {"RNN": [[1.0] * 4 + [0.9]] * 3}, "does not hold"),
        ("CLM-21", {"LSTM": [[1.0] * 5, [1.0] * 5, [0.5] * 5]}, "does not hold"),
        ("CLM-21", {"Transformer": [[1.0] * 5] * 3}, "does not hold"),
        ("PRE-24", {"probe: 80 / 10 / 10": [0.0] * 3}, "depends"),
        ("PRE-24", {"80 / 10 / 10": [0.0] * 3}, "does not hold"),
        ("POS-10", {"RNN": [[0.0, 0.0, 0.0, 9.0]] * 3}, "depends"),
        ("POS-10", {"learned": [[0.1] * 4] * 3, "sinusoidal": [[0.1] * 4] * 3}, "does not hold"),
    ],
)
def test_other_stored_figures_give_another_verdict(name: str, change: dict[str, Any], word: str) -> None:
    assert claim(name).judge({**stored(OURS)[name].figures, **change}).word == word


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in TAKE_SECONDS else name for name in VERDICTS]
)
def test_a_picture_is_made_of_the_figures(name: str) -> None:
    assert all(panel.title for panel in claim(name).picture(figures(name)))
