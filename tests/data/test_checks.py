"""The doctor: every check on data that have its fault, and on data that have not."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.data.corpus import Listed

from anyformer.core.discovery import discover
from anyformer.data.checks.alignment import Alignment
from anyformer.data.checks.check import Check, Facts, Finding, Item
from anyformer.data.checks.diagnosis import diagnose
from anyformer.data.checks.duplicates import Duplicates
from anyformer.data.checks.empty import Empty
from anyformer.data.checks.held_out import HeldOut
from anyformer.data.checks.identical import Identical
from anyformer.data.checks.labels import Labels
from anyformer.data.checks.language import Language
from anyformer.data.checks.lengths import Lengths
from anyformer.data.checks.little import Little
from anyformer.data.checks.no_label import NoLabel
from anyformer.data.checks.overlap import Overlap
from anyformer.data.checks.spellings import Spellings
from anyformer.data.checks.unknown import Unknown
from anyformer.data.checks.unseen_labels import UnseenLabels
from anyformer.data.checks.words_among_numbers import WordsAmongNumbers
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.record import Record
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.number_words import NumberWords
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.byte import Byte
from anyformer.errors import DataError

PAIRS = [replace(record, where=f"line {n}") for n, record in enumerate(NumberWords(count=600).records(), 1)]
TEXTS = [Record(record.text, where=record.where) for record in PAIRS]


def findings(check: Check, items: Sequence[Record | Item], facts: Facts | None = None) -> list[Finding]:
    watch = check.start(facts or Facts())
    for item in items:
        watch.see(item if isinstance(item, Item) else Item(item))
    return list(watch.findings())


def the_only(check: Check, items: Sequence[Record | Item], facts: Facts | None = None) -> Finding:
    (found,) = findings(check, items, facts)
    assert found.check == check.kind
    return found


def sized(*lengths: int) -> list[Item]:
    return [Item(Record("", where=f"line {n}"), tokens=[1] * size) for n, size in enumerate(lengths, 1)]


def test_every_check_is_silent_on_good_pairs() -> None:
    discover()
    items = [Item(record, tokens=range(9), target=range(9)) for record in PAIRS]
    items[-1] = replace(items[-1], split="valid")
    for check in Check.kinds.values():
        assert issubclass(check, Check) and not findings(check(), items), check.kind
        assert not findings(check(), []), check.kind


def test_data_of_which_nothing_is_held_out_are_told() -> None:
    assert "none of the 600 records is held out" in the_only(HeldOut(), TEXTS).text


def test_less_than_one_sequence_is_told_where_texts_are_packed() -> None:
    assert "only 7 tokens" in the_only(Little(), sized(3, 4), Facts(context=8)).text
    assert not findings(Little(), sized(3, 5), Facts(context=8))
    assert not findings(Little(), sized(3, 4), Facts(context=8, longest=6))


def test_empty_halves_are_told_with_their_lines() -> None:
    found = findings(Empty(), [*PAIRS, Record(" ", "x", where="line 7"), Record("x", "\n", where="line 9")])
    assert [(it.text, it.where) for it in found] == [
        ("1 of 602 records (0.2%) have an empty text.", ("line 7",)),
        ("1 of 602 records (0.2%) have an empty target.", ("line 9",)),
    ]


def test_targets_that_repeat_the_source_are_told_past_a_share() -> None:
    same = [replace(record, target=record.text) for record in PAIRS[:60]]
    assert the_only(Identical(), [*PAIRS[60:], *same]).where == ("line 1", "line 2", "line 3")
    assert "Right if copying is the task" in the_only(Identical(), same).text
    assert not findings(Identical(), [*PAIRS, same[0]])


def test_records_that_come_again_are_told() -> None:
    assert the_only(Duplicates(), [*PAIRS, *PAIRS[:9]]).text.startswith("9 of 609 records (1.5%) repeat")
    other = [replace(record, target="another") for record in PAIRS]
    assert not findings(Duplicates(), [*PAIRS, *other])


def test_duplicates_remembers_no_more_than_it_may() -> None:
    assert the_only(Duplicates(records=10, most=0), [*PAIRS, *PAIRS]).text.startswith("10 of 1,200 records")


def test_held_out_texts_in_training_are_told_though_not_word_for_word() -> None:
    held_out = [Item(replace(TEXTS[5], text=f"{TEXTS[5].text.upper()} !!", where="line 99"), "valid")]
    assert the_only(Overlap(), [*TEXTS, *held_out]).where == ("line 99",)
    assert not findings(Overlap(), [*TEXTS[6:], *held_out])
    copies = [Item(replace(TEXTS[5], where="line 99"), "valid")]  # which training leaves out
    assert not findings(Overlap(), [*TEXTS, *copies])


@pytest.mark.parametrize("label", ["ham", "7", "7.5"])
def test_labels_that_are_all_the_same_are_refused(label: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps({"body": f"text {n}", "topic": label}) for n in range(60)))
    spec = DataSpec(source=JSONLines(path=str(file), text="body", label="topic"), tokenizer=Byte())
    message = f"every label of training in the column 'topic' is '{label}'.*data.source.label=null"
    for read in (diagnose, partial(prepare, folder=tmp_path / "prepared")):
        with pytest.raises(DataError, match=message):
            read(spec)
    assert not diagnose(spec.with_("source.label", None)).contents.classes


def test_tags_that_are_all_the_same_are_refused() -> None:
    tagged = [replace(record, tags=("noun",) * len(record.text.split(" "))) for record in TEXTS]
    with pytest.raises(DataError, match="every label of training in the source 'test_listed' is 'noun'"):
        diagnose(DataSpec(source=Listed.of(tagged), tokenizer=Byte()))


def test_labels_that_are_nearly_all_the_same_are_told() -> None:
    ham = [replace(record, label="ham") for record in TEXTS]
    nearly = the_only(Labels(), [*ham, Record("x", label="spam", where="line 601")])
    assert "600 of 601 labels" in nearly.text and nearly.where == ("line 601",)
    assert not findings(Labels(), [replace(record, label=str(n % 2)) for n, record in enumerate(TEXTS)])


def test_a_class_with_one_example_is_named() -> None:
    header = Record("tweet", label="mood", where="line 0")
    finding = the_only(Labels(), [header, *(replace(record, label="ab"[n % 2]) for n, record in enumerate(TEXTS))])
    assert finding.text.startswith("1 label with one example: 'mood'.") and finding.where == ("line 0",)


def test_labels_that_validation_or_test_have_no_example_of_are_named_with_what_to_do(tmp_path: Path) -> None:
    def split(name: str, labels: str) -> list[Item]:
        return [Item(Record("text", label=label), name) for label in labels]

    train = split("train", "aabbbcccdde")
    text = the_only(UnseenLabels(), [*train, *split("valid", "ad"), *split("test", "acd")]).text
    assert text.startswith(
        "no validation text is labelled 'b' or 'c'; no test text is labelled 'b'. Raise data.valid and"
    )
    assert (
        "validation or test text is labelled 'd'."
        in the_only(UnseenLabels(), [*train, *split("valid", "abc"), *split("test", "abc")]).text
    )
    assert not findings(UnseenLabels(), [*train, *split("valid", "abcd")])  # 'e' has one example, which may be a typo
    rows = [{"text": f"text {n}", "label": "rare" if n % 50 == 0 else "ab"[n % 2]} for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = JSONLines(path=str(tmp_path / "rows.jsonl"), text="text", label="label")
    prepared = prepare(DataSpec(source=source, tokenizer=Byte(), valid=0.02), tmp_path / "prepared", workers=0)
    assert "no validation text is labelled" in " ".join(prepared.manifest.facts["warnings"])


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (["entailment", "neutral", "contradiction", "-"], "'-' (150)"),
        (["spam", "ham", "N/A", "spam"], "'N/A' (150)"),
        (["0", "1", "2", "-1"], "'-1' (150)"),
        (["1", "2", "3", "NA"], "'NA' (150)"),
        (["EU", "US", "AS", "NA"], ""),  # continents
        (["-1", "0", "1", "0"], ""),  # a scale
        (["none", "hello", "bye", "unknown"], ""),  # classes of intents
        (["-", "-", "-", "-"], ""),
    ],
)
def test_a_label_that_means_that_there_is_none_is_named(labels: list[str], named: str) -> None:
    records = [replace(record, label=labels[n % 4]) for n, record in enumerate(TEXTS)]
    assert [named in one.text for one in findings(NoLabel(), records)] == [True] * bool(named)
    assert all("data.source.unlabelled=" in one.text for one in findings(NoLabel(), records))
    assert not findings(NoLabel(), records, Facts(contents=Contents(numbers=True)))


def test_classes_in_several_spellings_are_named() -> None:
    labels = ["Spam", "spam", "spam ", "ham"] * 150
    finding = the_only(Spellings(), [replace(record, label=labels[n]) for n, record in enumerate(TEXTS)])
    assert "1 label in several spellings" in finding.text and finding.where[0] == "line 2"
    assert "'Spam' (150), 'spam' (150), 'spam ' (150)." in finding.text and "ham" not in finding.text.lower().split()
    tagged = replace(TEXTS[0], tags=("NOUN", "noun", "verb"))
    assert "'NOUN' (1), 'noun' (1)" in the_only(Spellings(), [tagged]).text
    assert not findings(Spellings(), [replace(record, label="ab"[n % 2]) for n, record in enumerate(TEXTS)])


def test_words_among_numbers_are_named() -> None:
    labels = ["n/a", "unknown", "n/a", *(f"{n / 8}" for n in range(597))]
    finding = the_only(WordsAmongNumbers(), [replace(record, label=labels[n]) for n, record in enumerate(TEXTS)])
    assert "3 of 600 labels (0.5%) are no numbers: 'n/a' (2), 'unknown' (1)." in finding.text
    assert "each of the 597 numbers is a class" in finding.text and finding.where == ("line 1", "line 2", "line 3")


@pytest.mark.parametrize(("labels"), [["12", "n/a"], [f"{n}" for n in range(99)], ["n/a", *map(str, range(5))]])
def test_labels_that_are_meant_as_words_or_numbers_are_not_reported(labels: list[str]) -> None:
    items = [replace(record, label=labels[n % len(labels)]) for n, record in enumerate(TEXTS)]
    assert not findings(WordsAmongNumbers(), items)


def test_labels_with_a_comma_are_named_if_they_are_numbers_or_several_labels() -> None:
    def records(labels: list[str]) -> list[Record]:
        return [replace(record, label=labels[n % len(labels)]) for n, record in enumerate(TEXTS)]

    assert (
        "each of 3 is a class. To predict a number, write 4.2." in the_only(Labels(), records(["4,2", "3", "1,5"])).text
    )
    assert not findings(Labels(), records(["4,2", "3", "red,green"]))
    assert "each of 2 combinations is a class of its own" in the_only(Labels(), records(["a", "b", "a,b", "b, a"])).text


def test_labels_that_are_all_different_are_told_unless_they_are_measured() -> None:
    items = [replace(record, label=record.where) for record in TEXTS]
    assert "600 different labels" in the_only(Labels(), items).text
    assert not findings(Labels(), items, Facts(Contents(numbers=True)))


def test_records_that_lose_their_end_are_told_but_not_those_that_are_cut_into_several() -> None:
    facts = Facts(Contents(pair=True), context=10, longest=8)
    assert the_only(Lengths(), sized(3, 4, 9), facts).where == ("line 3",)
    assert not findings(Lengths(), sized(3, 4, 8), facts)
    assert not findings(Lengths(), sized(3, 4, 9), replace(facts, longest=None))


def test_a_record_far_longer_than_all_others_is_told() -> None:
    found = the_only(Lengths(), sized(*[5] * 99, 5000))
    assert "5,000 tokens" in found.text and found.where == ("line 100",)
    assert not findings(Lengths(), sized(*[5] * 99, 50))


def test_a_flood_of_unknown_tokens_is_told_by_split() -> None:
    train = Item(Record("", where="line 1"), tokens=[2, 3, 4])
    valid = Item(Record("", where="line 2"), "valid", [2, 1, 4], [1])
    found = the_only(Unknown(), [train, valid], Facts(unknown=1))
    assert found.text.startswith("2 of 4 tokens (50.0%) of valid") and found.where == ("line 2",)


def test_a_half_in_the_language_of_the_other_side_is_told() -> None:
    first, *rest = NumberWords(target="french", count=600).records()
    assert not findings(Language(), [first, *rest])
    stray = replace(first, target=rest[0].text)
    assert the_only(Language(), [stray, *rest]).where == (first.where,)
    swapped = replace(first, text=str(first.target), target=first.text)
    assert "swapped" in the_only(Language(), [swapped, *rest]).text


def test_sides_of_one_language_are_not_judged_by_it() -> None:
    assert not findings(Language(), [replace(record, target=record.text[::2]) for record in TEXTS])
    same = pairwise(TEXTS)
    assert not findings(Language(), [replace(record, target=other.text) for record, other in same])


def test_pairs_whose_lengths_do_not_fit_are_told() -> None:
    long = Record("one", "sehr lang " * 50, where="line 601")
    assert the_only(Alignment(), [*PAIRS, long]).where == ("line 601",)


def test_a_side_that_slipped_by_a_line_is_told_from_where_on() -> None:
    pairs = [replace(record, target="x" * len(record.text)) for record in PAIRS]
    later = pairwise(pairs[128:])
    found = the_only(Alignment(), [*pairs[:128], *(replace(one, target=next_.target) for one, next_ in later)])
    assert "slip by a line" in found.text and found.where[0] == "line 129"


def test_the_diagnosis_counts_what_the_source_gives(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two\nthree\n" * 50)
    found = diagnose(DataSpec(source=Text(path=str(file), documents="line"), tokenizer=Byte(), valid=0.5, context=64))
    assert (found.records, found.characters, found.tokens) == (100, 50 * 12, 50 * 12)
    assert [it.check for it in found.findings] == ["duplicates"]
    assert found.samples[0] == {"where": f"{file}:1", "text": "one two"}


@pytest.mark.parametrize("together", [3, 256])
def test_the_diagnosis_counts_training_records_that_are_held_out_elsewhere(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyformer.data.checks.diagnosis.TOGETHER", together)
    train = [Record(f"text {n}", split="train") for n in range(10)]
    held_out = [Record(f"text {n}", split="valid") for n in (2, 3, 9, 40)]
    diagnosis = diagnose(DataSpec(source=Listed.of([*held_out, *train]), tokenizer=Byte()))
    assert diagnosis.overlap == 3 and diagnosis.split_by_source
    unnamed = Listed.of([Record(record.text) for record in train])
    assert not diagnose(DataSpec(source=unnamed, tokenizer=Byte())).split_by_source


def test_shares_of_one_text_are_those_of_its_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(2_000)))
    diagnosis = diagnose(DataSpec(source=Text(path=str(tmp_path / "a.txt")), tokenizer=Byte()))
    assert diagnosis.unit == "text" and 0.2 <= diagnosis.cut_off["valid"] < 0.23


@pytest.mark.parametrize("most", [7, 100])
def test_a_sample_is_bounded_and_reaches_to_the_end(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.data.checks.diagnosis.RECORDS", most)
    found = diagnose(DataSpec(source=NumberWords(count=600), tokenizer=Byte()))
    assert most / 4 < found.sampled <= most and found.records == 600
    exact = sum(len(it.text.encode()) + len(str(it.target).encode()) for it in NumberWords(count=600).records())
    assert found.tokens == pytest.approx(exact, rel=0.1)


def test_lines_and_long_stretches_of_held_out_text_in_training_are_told() -> None:
    rng = random.Random(0)
    lines = [" ".join("".join(rng.choices("abcdefgh", k=6)) for _ in range(10)) for _ in range(420)]
    train = [Item(Record("\n".join(lines[start : start + 20]), where=f"part {start}")) for start in range(0, 400, 20)]
    apart = Item(Record("\n".join(lines[400:420]), where="apart"), "valid")
    assert not findings(Overlap(), [*train, apart])
    copied = Item(Record("\n".join([*lines[400:415], *lines[33:38]]), where="copied"), "valid")
    assert "5 of 20 lines of 40 or more letters (25.0%)" in (finding := the_only(Overlap(), [*train, copied])).text
    assert finding.where == ("copied",) and "letters in stretches" in finding.text
    flowing = Item(Record(" ".join([*lines[400:415], *lines[33:38]]), where="flowing"), "valid")
    assert "lines" not in (finding := the_only(Overlap(), [*train, flowing])).text and "stretches" in finding.text


def test_every_common_stretch_of_95_letters_is_found() -> None:
    rng = random.Random(0)
    train, held_out = ("".join(rng.choices("abcdefgh", k=5_000)) for _ in range(2))
    for start in (0, 1, 47, 48, 1_234, 4_905):
        text = held_out[:start] + train[start : start + 95] + held_out[start + 95 :]
        items = [Item(Record(train)), Item(Record(text, where="here"), "test")]
        assert the_only(Overlap(most=0.0), items).where == ("here",)


def test_overlap_remembers_no_more_than_it_may() -> None:
    lines = [f"{record.text}\n{record.text} once again" for record in TEXTS]
    items = [Item(Record(line), split) for split in ("train", "valid") for line in map(str.upper, lines)]
    assert not findings(Overlap(marks=10), [*map(Item, map(Record, lines)), *items[-5:]])
    assert "5 of 5 texts" in the_only(Overlap(), [*map(Item, map(Record, lines)), *items[-5:]]).text


def test_overlap_in_other_alphabets_is_found_too() -> None:
    text = "Ещё немного, и всё будет готово; Größe zählt. " * 5
    items = [Item(Record(f"Начало. {text}")), Item(Record(f"Конец! {text.upper()}", where="here"), "valid")]
    assert the_only(Overlap(), items).where == ("here",)


def test_texts_of_two_stretches_are_compared() -> None:
    train = "".join(random.Random(0).choices("abcdefgh", k=5_000))
    items = [Item(Record(train)), Item(Record("z" + train[480:575], where="here"), "test")]
    assert the_only(Overlap(most=0.0, letters=1), items).where == ("here",)
