"""From records to a prepared folder: everything arrives, once, and what is wrong is named."""

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.data.corpus import Listed, documents, ready

from anyformer.core import decode
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.contents import SpreadSample, utf8_bytes
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.byte import Byte
from anyformer.data.tokenizers.file import File
from anyformer.errors import DataError, SpecError
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.regress import Regress
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.training.loop.feed import Loader

SHARED = Path(__file__).parents[3] / "shared" / "data"
MEASURE = """
import resource, sys
import torch
from pathlib import Path
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.bpe import BPE
# getrusage would count what the process was before it became this one: a copy of the tests'
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
before = peak()
spec = DataSpec(source=Text(path=sys.argv[1]), tokenizer=BPE(size=1000), sample_bytes=1_000_000)
prepared = prepare(spec, sys.argv[2], workers=int(sys.argv[3]))
worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
print(before, peak(), worker, prepared.counts["train"]["tokens"])
"""


def text_of(prepared: Prepared, split: str, side: str = "tokens") -> list[str]:
    found = prepared.split(split).sides[side]
    return [prepared.tokenizer.decode(found[sample].tolist()) for sample in range(len(found))]


def test_every_text_arrives_once_and_in_order(tmp_path: Path) -> None:
    records = documents([20] * 300)
    prepared = ready(tmp_path / "d", records)
    found = text_of(prepared, "train") + text_of(prepared, "valid")
    assert sorted(found) == sorted(record.text for record in records)
    train = [int(text.partition(":")[0]) for text in text_of(prepared, "train")]
    assert train == sorted(train) and 0 < prepared.counts["valid"]["documents"] < 60


def test_documents_are_stored_whole_each_with_its_end(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "d", [Record("abcdefghij"), Record("xyz")], context=4, valid=0.0)
    side, end = prepared.split("train").sides["tokens"], prepared.words.eos
    assert text_of(prepared, "train") == ["abcdefghij", "xyz"]
    assert [side[sample].tolist().count(end) for sample in range(2)] == [1, 1]
    assert prepared.counts["train"] == {"tokens": 15, "samples": 2, "documents": 2, "empty": 0, "long": 0, "lost": 0}


def test_pieces_of_one_text_are_one_document_where_they_are_in_one_split(tmp_path: Path) -> None:
    texts = {"one ": "train", "two ": "train", "three ": "valid", "four ": "train", "five": "train"}
    records = [Record(text, split=split, continues=text != "one ") for text, split in texts.items()]
    prepared = ready(tmp_path / "d", [*records, Record("new", split="train")], context=64)
    assert text_of(prepared, "train") == ["one two ", "four five", "new"]
    assert text_of(prepared, "valid") == ["three "]
    assert prepared.counts["train"]["documents"] == 3


@pytest.mark.parametrize("packing", ["bucket", "pack"])
def test_the_longest_target_is_that_of_training_with_its_end(tmp_path: Path, packing: str) -> None:
    records = [Record("abcdef", target="uvwx"), Record("g", target="yz"), Record("h", target="q" * 9, split="valid")]
    prepared = ready(tmp_path / packing, records, packing=packing, valid=0.0)
    assert prepared.longest_target == 5  # bytes
    assert ready(tmp_path / "plain", [Record("abc")], valid=0.0).longest_target is None


def test_pairs_lose_their_ends_and_are_counted(tmp_path: Path) -> None:
    records = [Record("abcdef", target="uv"), Record("gh", target="wxyz"), Record("", target="left out")]
    prepared = ready(tmp_path / "d", records, context=5, valid=0.0)
    assert text_of(prepared, "train", "source") == ["abc", "gh"]
    assert text_of(prepared, "train") == ["uv", "wxy"]
    assert prepared.packing == Bucket()
    assert {name: prepared.counts["train"][name] for name in ("documents", "empty", "long", "lost")} == {
        "documents": 2, "empty": 1, "long": 2, "lost": 4,
    }  # fmt: skip


def test_tags_stand_at_the_first_token_of_their_word(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "d", [Record("the cat", tags=("DET", "NOUN")), Record("a", tags=("DET",))], valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512, shuffle=False)))[0]
    assert prepared.contents.tags == ("DET", "NOUN")
    rows = {
        len(text): tags
        for text, tags in zip(["the cat", "a"], [[0, -1, -1, 1, -1, -1, -1], [0] + [-1] * 6], strict=True)
    }
    lengths = batch.frame.valid.sum(1).tolist()
    assert batch.labels.tags.tolist() == [rows[length] for length in lengths]


def test_choices_have_a_place_for_every_answer(tmp_path: Path) -> None:
    records = [Record("q", choices=("yes", "no", "maybe"), label="2"), Record("r", choices=("a", "bc"), label="0")]
    prepared = ready(tmp_path / "d", records, valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
    found = [[prepared.tokenizer.decode(row.tolist()) for row in rows] for rows in batch.labels.choices]
    assert sorted(zip(batch.labels.label.tolist(), found, strict=True)) == [
        (0, ["a", "bc", ""]), (2, ["yes", "no", "maybe"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "classes", "dtype"),
    [
        (["spam", "ham"], ("ham", "spam"), torch.int64),
        (["10", "9"], ("9", "10"), torch.int64),
        (["0.5", "2"], (), torch.float32),
        (["0.5", "x"], ("0.5", "x"), torch.int64),
    ],
)
def test_labels_are_classes_or_measures(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...], dtype: torch.dtype
) -> None:
    prepared = ready(tmp_path / "d", [Record(f"text {label}", label=label) for label in labels], valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
    assert prepared.contents.classes == classes and batch.labels.label.dtype == dtype
    for row, label in zip(batch.tokens, batch.labels.label, strict=True):
        said = prepared.tokenizer.decode(row.tolist()).split()[1]
        assert said == classes[label] if classes else float(said) == label


def test_processes_write_what_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.data.preparation.pipeline.CHUNK", 1000)
    spec = DataSpec(source=Listed.of(documents([50] * 600)), tokenizer=BPE(size=400))
    alone, several = prepare(spec, tmp_path / "a", workers=0), prepare(spec, tmp_path / "b", workers=2)
    assert several.manifest == alone.manifest


def test_prepared_data_are_used_again_and_changed_data_are_not(tmp_path: Path) -> None:
    records = documents([30] * 50)
    first = ready(tmp_path / "d", records)
    before = (tmp_path / "d" / "manifest.json").stat().st_mtime_ns
    assert ready(tmp_path / "d", records).manifest == first.manifest
    assert (tmp_path / "d" / "manifest.json").stat().st_mtime_ns == before
    records[0] = replace(records[0], text="changed")
    with pytest.raises(DataError, match=f"fingerprint {first.manifest.fingerprint[:16]}, now .*rebuild=True"):
        ready(tmp_path / "d", records)


def test_a_harmed_folder_is_refused_then_rebuilt(tmp_path: Path) -> None:
    spec = DataSpec(source=Listed.of(documents([30] * 50)), tokenizer=Byte())
    good = prepare(spec, tmp_path / "d").manifest
    (tmp_path / "d" / "train.tokens.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"train\.tokens\.bin: truncated or changed"):
        prepare(spec, tmp_path / "d")
    assert prepare(spec, tmp_path / "d", rebuild=True).manifest == good


def test_the_tokenizer_never_sees_held_out_text(tmp_path: Path) -> None:
    records = [
        Record("abab " * 20, split="train"),
        Record("zqzq " * 20, split="valid"),
        Record("zqzq " * 20, split="train"),
    ]
    prepared = prepare(DataSpec(source=Listed.of(records), tokenizer=BPE(size=400)), tmp_path / "d")
    assert len(prepared.tokenizer.encode("abab")) == 1 and len(prepared.tokenizer.encode("zqzq")) == 4
    assert prepared.manifest.facts["copies_of_held_out_texts"] == 1
    assert prepared.counts["train"]["documents"] == prepared.counts["valid"]["documents"] == 1


def test_one_document_is_enough(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "d", [Record("one two three four five six seven eight nine ten")], valid=0.2)
    assert text_of(prepared, "train") + text_of(prepared, "valid") == [
        "one two three four five six seven ", "eight nine ten",
    ]  # fmt: skip
    assert next(iter(Loader(prepared=prepared, batch_tokens=512)))[0].tokens.shape == (1, 512)


@pytest.mark.parametrize(
    ("records", "options", "words"),
    [
        ([], {}, "has no records"),
        ([Record("")], {"valid": 0.0}, "training split is empty"),
        ([Record("a", where="f:1"), Record("b", target="c", where="f:2")], {}, "f:1: no target, but f:2 has one"),
        (
            [Record("a b", tags=("X",), where="f:1"), Record("c", tags=("Y",))],
            {"valid": 0.0},
            "f:1: 2 words but 1 tag",
        ),
        ([Record("a", choices=("b",), label="1", where="f:1")], {"valid": 0.0}, "f:1: label '1' should be the index"),
        ([Record("a", target="b")], {"packing": "rows", "valid": 0.0}, "rows is for plain documents, .* have pairs"),
        (
            [Record("a", target="b", label=label) for label in "cd"],
            {"packing": "pack", "valid": 0.0},
            "pack is for .* have labels",
        ),
        ([Record("a", target="b")], {"packing": "pack", "valid": 0.0, "context": 2}, "context=2 leaves no room"),
        (
            [Record("a", label="x"), Record("b", label="y", split="valid", where="f:2")],
            {},
            "f:2: label 'y' never occurs",
        ),
        ([Record("a", target="b", where="f:1")], {}, "f:1: the only record"),
    ],
)
def test_what_is_wrong_is_named_and_leaves_nothing_behind(
    tmp_path: Path, records: list[Record], options: dict[str, object], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        ready(tmp_path / "d", records, **options)
    assert list(tmp_path.iterdir()) == []


def test_somebody_elses_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="holds something else"):
        ready(
            tmp_path,
            documents([5] * 5),
        )
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_the_spec_is_plain_data() -> None:
    spec = DataSpec(source=Listed(), tokenizer=Byte(), valid=0.1)
    assert decode(DataSpec, spec.to_dict()) == spec
    with pytest.raises(SpecError, match="leave nothing to train on"):
        DataSpec(source=Listed(), tokenizer=Byte(), valid=0.5, test=0.5)


def test_a_sample_of_text_reaches_from_the_first_to_the_last() -> None:
    sample = SpreadSample(utf8_bytes, 1000)
    for number in range(10_000):
        sample.see(f"{number:010}")
    kept = [int(text) for text in sample]
    assert 25 <= len(kept) <= 100 and min(kept) < 500 and max(kept) > 9500


@pytest.mark.skipif(not SHARED.exists(), reason="the real speeches (speeches.jsonl.gz) are not here")
def test_packing_fills_the_rows_of_real_speeches(tmp_path: Path) -> None:
    with gzip.open(SHARED / "speeches.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [Record(row["text"], split=row["split"]) for row in map(json.loads, islice(lines, 0, None, 4))]
    spec = DataSpec(source=Listed.of(records), tokenizer=BPE(size=500), context=1024, sample_bytes=100_000)
    prepared = prepare(spec, tmp_path / "d", workers=0)
    loader = Loader(prepared=prepared, batch_tokens=64 * 1024, epochs=1)
    valid = torch.cat([batch.frame.valid.flatten() for batch, _ in loader])
    assert valid.sum() == prepared.counts["train"]["tokens"]
    assert valid.float().mean() > 0.98


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the real pairs (en-de.tsv.gz) are not here")
def test_real_pairs_arrive_once_with_little_padding(tmp_path: Path) -> None:
    with gzip.open(SHARED / "en-de.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    source = Listed.of(Record(text, target=target, split=split, group=group) for split, group, text, target in rows)
    prepared = prepare(DataSpec(source=source, tokenizer=BPE(), context=256), tmp_path / "d", workers=2)
    assert [prepared.counts[split]["documents"] for split in ("train", "valid", "test")] == [77_554, 1_662, 1_358]
    assert prepared.manifest.facts["copies_of_held_out_texts"] == 0
    counts = prepared.counts["train"]
    for budget in (4096, 16_384):
        cells = rows_seen = used = 0
        for batch, _ in Loader(prepared=prepared, batch_tokens=budget, epochs=1):
            assert batch.source is not None
            cells += batch.tokens.numel() + batch.source.tokens.numel()
            used += int(batch.frame.valid.sum() + batch.source.frame.valid.sum())
            rows_seen += len(batch.tokens)
        assert rows_seen == 77_554 and used == counts["tokens"] + counts["source"]
        assert 1 - used / cells < 0.05


def write_text(path: Path, size: int) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    paragraphs = [" ".join(rng.choices(words, k=2000)) + "\n" for _ in range(50)]
    with path.open("w") as file:
        written = 0
        while written < size:  # a number in front, so that no two are the same
            written += file.write(f"{written} {rng.choice(paragraphs)}")


def measured(folder: Path, size: int, workers: int) -> tuple[int, int, int, int]:
    """MB before, MB at most, MB of the largest worker, tokens."""
    write_text(folder / "text.txt", size)
    command = [sys.executable, "-c", MEASURE, str(folder / "text.txt"), str(folder / "d"), str(workers)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    before, peak, worker, count = map(int, result.stdout.split())
    assert count > size / 20
    return before, peak, worker, count


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    before, peak, _, _ = measured(tmp_path, 50_000_000, workers=0)
    assert peak - before < 50


@pytest.mark.learn  # two minutes
def test_a_gigabyte_is_prepared_in_half_of_it(tmp_path: Path) -> None:
    _, peak, worker, _ = measured(tmp_path, 1_000_000_000, workers=2)
    assert max(peak, worker) < 500


def test_texts_leave_room_for_what_stands_around_them(tmp_path: Path) -> None:
    records = [Record("x" * size, label="ab"[size % 2]) for size in (5, 6, 7, 20)]
    prepared = ready(tmp_path / "d", records, context=8, valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
    assert sorted(batch.frame.valid.sum(1).tolist()) == [5, 6, 6, 6]
    for objective in (NextToken(), MaskedWords()):
        made = objective.prepare(batch, prepared.words, torch.Generator())
        assert made.tokens.shape[1] <= prepared.context
    with pytest.raises(DataError, match="context=2 leaves no room"):
        ready(tmp_path / "e", records, context=2, valid=0.0)


def test_a_text_that_was_cut_is_not_said_to_end(tmp_path: Path) -> None:
    records = [Record("abcdef", target="uvwxyz"), Record("gh", target="stuvwxyz"), Record("ijklmnop", target="q")]
    prepared = ready(tmp_path / "d", records, context=8, valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
    assert batch.source is not None
    made = Seq2Seq().prepare(batch, prepared.words, torch.Generator())
    assert made.targets is not None and made.weight is not None and made.source is not None
    for row, (target, weight) in enumerate(zip(made.targets, made.weight, strict=True)):
        said = target[weight > 0].tolist()
        text = prepared.tokenizer.decode(said)
        assert (said[-1] == prepared.words.eos) == (text != "stuvwx"), text
        assert bool(batch.truncated[row]) == (text == "stuvwx")
        assert bool(batch.source.truncated[row]) == (text == "q")
    assert (made.source.tokens == prepared.words.sep).sum(1).tolist() == [1, 1, 1]  # it parts, it does not end
    half = batch.take(torch.tensor([2, 0]))
    assert torch.equal(half.truncated, batch.truncated[[2, 0]])


def test_packed_documents_have_no_cut_mark_and_go_on(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "d", [Record("abcdefghij"), Record("xyz")], context=4, valid=0.0)
    batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
    made = NextToken().prepare(batch, prepared.words, torch.Generator())
    assert batch.truncated is None and made.targets is not None
    assert (made.targets == prepared.words.eos).sum() == 2


def test_numbers_are_there_for_regression(tmp_path: Path) -> None:
    for place, labels in enumerate((["0.5", "2"], ["3", "10"])):
        records = [Record(f"text {label}", label=label) for label in labels]
        prepared = ready(tmp_path / str(place), records, valid=0.0)
        batch = next(iter(Loader(prepared=prepared, batch_tokens=512)))[0]
        made = Regress().prepare(batch, prepared.words, torch.Generator())
        texts = [prepared.tokenizer.decode(row.tolist()).split()[1] for row in batch.tokens]
        assert made.labels.label.tolist() == [float(text) for text in texts]


def test_another_tokenizer_file_makes_other_data_and_another_place_does_not(tmp_path: Path) -> None:
    def fingerprint(text: str, name: str = "a.txt") -> str:
        (tmp_path / name).write_text("the same text\n" * 9)
        (tmp_path / f"{name}.json").write_text(text)
        tokenizer = File(path=str(tmp_path / f"{name}.json"))
        return DataSpec(source=Text(path=str(tmp_path / name)), tokenizer=tokenizer).fingerprint()

    Byte().train([]).save(tmp_path / "byte.json")
    BPE(size=400).train(["abab " * 20]).save(tmp_path / "bpe.json")
    byte, bpe = ((tmp_path / name).read_text() for name in ("byte.json", "bpe.json"))
    assert fingerprint(byte) == fingerprint(byte) == fingerprint(byte, "b.txt") != fingerprint(bpe)
