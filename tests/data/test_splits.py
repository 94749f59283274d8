"""Splits depend on the record and the seed alone, and share nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.preparation.contents import SPLITS, Splitter, Survey, halves
from anyformer.data.record import Record
from anyformer.errors import DataError

SHARES = (("test", 0.1), ("valid", 0.2))


def split(records: list[Record], by: str = "auto", shares: tuple[tuple[str, float], ...] = SHARES) -> dict[str, list]:
    """As the pipeline does it: one look, then the assignment."""
    survey = Survey(Splitter(by, 0, shares))  # type: ignore[arg-type]
    for record in records:
        survey.see(record)
    splitter = survey.close()
    found: dict[str, list[Record]] = {name: [] for name in SPLITS}
    for record in records:
        name = splitter.assign(record)
        if name != "train" or not splitter.leaks([record])[0]:
            found[name].append(record)
    return found


few = st.sampled_from("abcdefghijklmnop")
records = st.lists(
    st.builds(Record, text=few, group=st.none() | few, split=st.none() | st.sampled_from(SPLITS)),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(records=records)
def test_no_training_text_is_held_out_whatever_is_given(records: list[Record]) -> None:
    found = split(records)
    assert not {r.text for r in found["train"]} & {r.text for r in found["valid"] + found["test"]}


@settings(deadline=None, max_examples=100)
@given(records=records)
def test_groups_never_cross(records: list[Record]) -> None:
    found = split(records, "fraction")
    groups = [{r.group for r in found[name] if r.group} for name in SPLITS]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]


def test_shares_are_as_asked_for() -> None:
    found = split([Record(str(number)) for number in range(10_000)])
    assert np.allclose([len(found[name]) for name in SPLITS], [7000, 2000, 1000], atol=150)


def test_a_record_stays_in_its_split_when_others_come() -> None:
    some = split([Record(str(number)) for number in range(100)])
    more = split([Record(str(number)) for number in range(500)])
    assert all(set(some[name]) <= set(more[name]) for name in SPLITS)


def test_what_the_source_gives_is_kept_and_not_cut_again() -> None:
    given_splits = [Record(str(n), split="valid" if n % 10 == 0 else "train") for n in range(200)]
    found = split(given_splits, shares=(("valid", 0.2),))
    assert [len(found[name]) for name in SPLITS] == [180, 20, 0]


def test_validation_is_cut_off_where_the_source_has_none() -> None:
    found = split([Record(str(n), split="train") for n in range(200)], shares=(("valid", 0.2),))
    assert len(found["valid"]) > 20 and len(found["train"]) > 120


@pytest.mark.parametrize("count", [2, 3, 10])
def test_small_data_have_something_in_both(count: int) -> None:
    for start in range(20):
        found = split([Record(f"{start}-{n}") for n in range(count)], shares=(("valid", 0.05),))
        assert found["train"] and found["valid"]


def test_a_lone_document_is_cut_at_a_space() -> None:
    train, valid = halves([Record("one two three four five six seven")], 0.3)
    assert train.text + valid.text == "one two three four five six seven"
    assert train.text.endswith(" ") and (train.split, valid.split) == ("train", "valid")


@pytest.mark.parametrize(
    ("by", "record", "words"),
    [
        ("given", Record("a", where="f:3"), "f:3: no split"),
        ("group", Record("a", where="f:3"), "f:3: no group"),
        ("auto", Record("a", split="dev", where="f:3"), "f:3: split 'dev'"),
    ],
)
def test_what_is_missing_is_named(by: str, record: Record, words: str) -> None:
    with pytest.raises(DataError, match=words):
        split([record], by)
