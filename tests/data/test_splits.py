"""Splits depend on the record and the seed alone, and share nothing."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus import Listed

from anyformer.data.preparation.contents import SPLITS, Splitter, Survey, digest, halves, shares_by_size
from anyformer.data.preparation.pipeline import DataSpec, look
from anyformer.data.record import Record
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.named_source import guess
from anyformer.data.tokenizers.byte import Byte
from anyformer.errors import DataError
from anyformer.evaluation.evaluating import held_out

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


@settings(deadline=None, max_examples=100)
@given(records=records)
def test_no_training_text_is_held_out_whatever_is_given(records: list[Record]) -> None:
    found = split(records)
    assert not {r.text for r in found["train"]} & {r.text for r in found["valid"] + found["test"]}


@settings(deadline=None, max_examples=50)
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
        (
            "given",
            Record("a", where="f:3"),
            "f:3: no split.*needs train, valid or test in every record. Use data.split=fraction",
        ),
        ("group", Record("a", where="f:3"), "f:3: no group.*needs one in every record. Use data.split=fraction"),
        ("auto", Record("a", split="dev", where="f:3"), "f:3: split 'dev'"),
    ],
)
def test_what_is_missing_is_named(by: str, record: Record, words: str) -> None:
    with pytest.raises(DataError, match=words):
        split([record], by)


def pieces_of(text: str, name: str, folder: Path) -> dict[str, list[str]]:
    """The texts of each split of a file with validation and test at 5%."""
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    data = DataSpec(source=guess(str(path)), tokenizer=Byte(), valid=0.05, test=0.05)
    return {split: [record.text for record in held_out(data, split)] for split in SPLITS}


@pytest.mark.parametrize("size", [3_000, 25_000, 89_000, 300_000, 1_500_000])
def test_held_out_splits_of_one_text_have_their_share_and_enough(size: int, tmp_path: Path) -> None:
    text = "".join(f"line {n} of {digest(str(n)):x}\n" for n in range(size // 26))
    splits = pieces_of(text, "a.txt", tmp_path)
    characters = {name: sum(map(len, texts)) for name, texts in splits.items()}
    assert sum(characters.values()) == len(text)
    for name in ("valid", "test"):
        assert characters[name] >= max(0.05 * len(text), min(12_000, 0.2 * len(text)))
        assert characters[name] < 0.06 * len(text) + 12_000 + 16_384
    assert splits["train"]


def test_a_file_and_its_compressed_copy_are_split_alike(tmp_path: Path) -> None:
    text = "".join(f"{n} {digest(str(n)) % 1000}\n" for n in range(9_000))
    assert pieces_of(text, "a.txt", tmp_path) == pieces_of(text, "a.txt.gz", tmp_path)


def test_neighbouring_pieces_of_a_split_are_one_text(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    train = pieces_of(text, "a.txt", tmp_path)["train"]
    assert len(train) < 45 and all(piece in text for piece in train)


def test_the_only_file_of_a_folder_is_split_like_a_text(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    text = "".join(f"line {n}\n" for n in range(20_000))
    splits = pieces_of(text, "a/only.txt", tmp_path)
    data = DataSpec(source=Folder(path=str(tmp_path / "a")), tokenizer=Byte())
    assert splits["valid"] and len("".join(record.text for record in held_out(data, "valid"))) >= 12_000


def test_three_pieces_are_one_for_each_split() -> None:
    shares = (("test", 0.05), ("valid", 0.05))
    places, sizes = np.array([0.9, 0.2, 0.5]), np.array([500, 500, 500])
    assert shares_by_size(shares, places, sizes) == (("test", 0.35), ("valid", pytest.approx(0.35)))
    assert shares_by_size(shares, places[:2], sizes[:2]) == (("test", 0.0), ("valid", pytest.approx(0.55)))
    assert shares_by_size(shares, places[:1], sizes[:1]) == (("test", 0.0), ("valid", 0.0))


def test_a_tokenizer_is_not_trained_on_pieces_that_are_held_out_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(3_000)))
    view = look(DataSpec(source=guess(str(tmp_path / "a.txt")), tokenizer=Byte(), valid=0.05))
    assert view.sample and all(view.splitter.assign(Record(text)) == "train" for text in view.sample)


def named_by_the_source(group: str, labels: tuple[str, ...] = ()) -> DataSpec:
    """Forty training records of one group and four validation records of another; nothing is said about a test."""
    texts = [
        *((f"training text number {n} of one group", "train", group) for n in range(40)),
        *((f"held out {n}", "valid", "other") for n in range(4)),
    ]
    every = [
        Record(text, split=split, group=where, label=labels[n % len(labels)] if labels else None, where=f"list:{n}")
        for n, (text, split, where) in enumerate(texts)
    ]
    return DataSpec(source=Listed.of(every), tokenizer=Byte(), valid=0.3, test=0.3)


@pytest.mark.parametrize("group", [f"package {n}" for n in range(8)])
def test_the_first_look_misses_no_training_record_for_the_place_of_its_group(group: str) -> None:
    """A hash may put a group where a split begins that the source turns out to name itself."""
    view = look(named_by_the_source(group))
    train = [record.text for record, split, _ in view.with_joins() if split == "train"]
    assert sorted(view.sample) == sorted(train)
    assert look(named_by_the_source(group, ("a", "b"))).contents.classes == ("a", "b")
    numbers = look(named_by_the_source(group, ("1.5", "4.5"))).contents
    assert (numbers.mean, numbers.deviation) == (pytest.approx((3.0, 1.5)) if train else (0.0, 1.0))
