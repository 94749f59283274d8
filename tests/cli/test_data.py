"""`anyformer data`: what it says of good data, and how it refuses bad ones."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli.main import main
from anyformer.cli.output.data_card import resolve
from anyformer.data.preparation.pipeline import prepare
from anyformer.training.recipes.resolve import data_of, draft

Capture = pytest.CaptureFixture[str]
KEYS = {"source", "tokenizer", "vocabulary", "records", "characters", "tokens", "sampled", "splits", "overlap"}
KEYS |= {"lengths", "labels", "task", "warnings", "samples"}
SHARED = Path(__file__).parents[3] / "shared" / "data"
TASKS = [
    "adding", "anbn", "associative_recall", "dyck", "first_token_recall", "flip_flop", "future_label",
    "in_context_regression", "listops", "modular_addition", "reverse", "selective_copy", "sort",
]  # fmt: skip
BUILT_IN = {
    "python_topics": [], "number_words": ["source.count=200"],
    "pronouns": [], "copy": ["source.count=200"], "parity": ["source.count=200"],
}  # fmt: skip


def answer(capsys: Capture, *arguments: str | Path) -> Any:
    assert main(["data", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def card(capsys: Capture, *arguments: str | Path) -> str:
    assert main(["data", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refusal(capsys: Capture, *arguments: str | Path, code: int = 3) -> str:
    assert main(["data", *map(str, arguments)]) == code
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err
    return " ".join(err.split())


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


LARGE = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("docstrings", "docstring_summaries", "unicode_names")]


@pytest.mark.parametrize("kind", [*BUILT_IN, *LARGE])
def test_every_built_in_source_has_a_card(kind: str, capsys: Capture) -> None:
    found = answer(capsys, kind, "tokenizer.kind=byte", *BUILT_IN.get(kind, []))
    assert found.keys() == KEYS and found["source"]["kind"] == kind
    assert found["records"] == sum(found["splits"].values()) > 0 and found["splits"]["valid"] > 0
    assert found["overlap"] == 0 and len(found["samples"]) == 2
    assert found["lengths"]["text"]["min"] <= found["lengths"]["text"]["p50"] <= found["lengths"]["text"]["max"]


def test_the_card_shows_counts_bars_and_samples(capsys: Capture) -> None:
    said = card(capsys, "number_words", "source.count=200")
    assert "number_words" in said and "200" in said and "█" in said and "No warnings." in said
    assert "samples" in said and "hundred" in said and "hundert" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "█" not in card(capsys, "number_words", "source.count=200", "--quiet")


def test_columns_are_guessed_and_overrides_change_them(tmp_path: Path, capsys: Capture) -> None:
    rows = (json.dumps({"text": f"text {n}", "body": f"body {n}", "label": "ab"[n % 2]}) for n in range(60))
    file = write(tmp_path / "a.jsonl", "\n".join(rows))
    assert answer(capsys, file)["labels"] == ["a", "b"]
    found = answer(capsys, file, "source.text=body", "data.tokenizer.kind=word", "valid=0.5")
    assert "body" in found["samples"][0]["text"] and found["tokenizer"]["kind"] == "word"
    assert found["splits"]["valid"] > 15


@pytest.mark.parametrize("kind", ["text", "labels", "number_words"])
def test_the_tokenizer_is_that_of_training(kind: str, tmp_path: Path, capsys: Capture) -> None:
    """Without settings, the card counts with the tokenizer and the context that `train` chooses for these data."""
    contents = {"text": "\n".join(f"line number {n} of a text" for n in range(200)),
                "labels": "text,label\n" + "".join(f"Text {n},{'ab'[n % 2]}\n" for n in range(60))}  # fmt: skip
    ending = {"text": "txt", "labels": "csv"}
    target = str(write(tmp_path / f"a.{ending[kind]}", contents[kind])) if kind in contents else kind
    overrides = [] if kind in contents else ["source.count=200"]
    shown = answer(capsys, target, *overrides)
    trained = data_of(draft(target, [f"data.{override}" for override in overrides]))
    assert shown["tokenizer"] == trained.tokenizer.to_dict()
    assert shown["vocabulary"] == prepare(trained, tmp_path / "prepared").words.size
    assert resolve(target, overrides) == trained


def test_warnings_name_lines(tmp_path: Path, capsys: Capture) -> None:
    lines = [f"line number {n}\tZeile Nummer {n}" for n in range(50)]
    file = write(tmp_path / "a.tsv", "\n".join([*lines, "something\t "]) + "\n")
    assert answer(capsys, file, "source.kind=pairs")["warnings"] == [
        {"check": "empty", "text": "1 of 51 records (2.0%) have an empty target.", "where": [f"{file}:51"]}
    ]
    assert ":51" in "".join(card(capsys, file, "source.kind=pairs").split())  # a long path goes over several lines


def test_the_row_about_overlap_agrees_with_the_warning(tmp_path: Path, capsys: Capture) -> None:
    """Records of a text that repeats its sentences are all different, but have the same sentences inside."""
    rng = random.Random(0)
    sentences = (
        "The cat sat on the mat near the door.",
        "Rain fell on the old roof.",
        "She read it twice, and smiled.",
    )
    repeated = write(tmp_path / "a.txt", " ".join(rng.choices(sentences, k=1_500)))
    said = " ".join(card(capsys, repeated).split())
    assert "overlap no whole records, but parts of held-out texts are in training: see the warning" in said
    assert "overlap held-out text stands in training, too" in said and "no held-out text is also" not in said
    different = write(tmp_path / "b.txt", " ".join("".join(rng.choices("abcdefgh", k=6)) for _ in range(6_000)))
    said = " ".join(card(capsys, different).split())
    assert "overlap none: no held-out text is also a training text" in said and "stands in training" not in said


def test_lines_that_were_skipped_are_counted(tmp_path: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": f"text {n}"}) for n in range(300)]
    file = write(tmp_path / "a.jsonl", "\n".join([*rows, "{broken"]))
    (warning,) = answer(capsys, file, "source.on_error=skip")["warnings"]
    assert warning["check"] == "skipped" and "left out 1 of 301" in warning["text"] and ":301" in warning["text"]


def test_data_cannot_drive_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    text = "\n".join(f"plain \x1b[31mred\x07 \u202e {n}" for n in range(40))
    said = card(capsys, write(tmp_path / "a.txt", text), "source.documents=line")
    assert "\x1b[31m" not in said and "\x07" not in said and "\u202e" not in said and r"\x1b[31mred\x07" in said


def test_a_word_tokenizer_with_too_few_words_is_told(capsys: Capture) -> None:
    found = answer(capsys, "number_words", "source.count=200", "tokenizer.kind=word", "tokenizer.size=120")
    assert "unknown" in {warning["check"] for warning in found["warnings"]}


def test_one_short_text_is_no_division_by_zero(tmp_path: Path, capsys: Capture) -> None:
    found = answer(capsys, write(tmp_path / "a.txt", "hello world"))
    assert found["characters"] == 11 and [warning["check"] for warning in found["warnings"]] == ["little"]
    said = card(capsys, tmp_path / "a.txt")
    assert "hello" in said and "less than one sequence of context=256" in said
    for text in ("hi", "x"):
        short = write(tmp_path / "b.txt", text)
        assert "too few to keep some for validation" in refusal(capsys, short)
        assert answer(capsys, short, "valid=0")["records"] == 1


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_has_a_card_without_warnings(kind: str, capsys: Capture) -> None:
    found = answer(capsys, kind, "source.count=400")
    assert found["warnings"] == [] and found["tokenizer"]["kind"] == "word"
    assert 0 < found["task"]["chance"] < 1 and found["task"]["lag"] > 0
    assert "guessing is right" in card(capsys, kind, "source.count=50", "--quiet")


@pytest.mark.parametrize(
    ("name", "columns", "counts"),
    [
        pytest.param("spam.jsonl.gz", {"text": "text", "label": "label"}, [4_901, 291, 289], marks=pytest.mark.slow),
        ("speeches.jsonl.gz", {"text": "text"}, [208, 10, 15]),
        pytest.param("en-de.tsv.gz", {"text": "#3", "target": "#4"}, [77_554, 1_662, 1_358], marks=pytest.mark.slow),
        pytest.param("en-fr.tsv.gz", {"text": "#3", "target": "#4"}, [93_233, 1_854, 1_685], marks=pytest.mark.slow),
        pytest.param(
            "descriptions.jsonl.gz",
            {"text": "description", "target": "synopsis"},
            [57_225, 1_283, 1_111],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_real_files_are_understood(name: str, columns: dict[str, str], counts: list[int], capsys: Capture) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"shared/data/{name} is not here")
    found = answer(capsys, SHARED / name, "tokenizer.kind=byte")
    assert columns.items() <= found["source"].items()
    assert found["splits"] == dict(zip(("train", "valid", "test"), counts, strict=True))


def test_a_missing_path_is_told_with_the_nearest_name(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "notes.txt", "hello")
    said = refusal(capsys, tmp_path / "nots.txt")
    assert "no such file or folder" in said and "notes.txt" in said
    assert "number_words" in refusal(capsys, "numberwords")


def test_empty_data_are_told(tmp_path: Path, capsys: Capture) -> None:
    assert "holds no file" in refusal(capsys, tmp_path)
    assert "is empty (0 bytes)" in refusal(capsys, write(tmp_path / "a.txt", ""))


def test_a_bad_line_is_told_by_its_number(tmp_path: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": f"text {n}"}) for n in range(99)]
    assert "a.jsonl:100: not JSON" in refusal(capsys, write(tmp_path / "a.jsonl", "\n".join([*rows, "{broken"])))
    missing = "\n".join([*rows, '{"other": 1}'])
    said = refusal(capsys, write(tmp_path / "b.jsonl", missing))
    assert "b.jsonl:100" in said and "text" in said


def test_a_picture_or_an_archive_is_no_text(tmp_path: Path, capsys: Capture) -> None:
    for data in (b"\x89PNG\r\n\x1a\n\0\0", b"PK\x03\x04\x14\0\0\0"):
        assert "does not look like text" in refusal(capsys, write(tmp_path / "a.txt", data))


def test_parallel_files_of_different_lengths_are_told_with_both_counts(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "a.en", "one\ntwo\nthree\n")
    write(tmp_path / "a.de", "eins\nzwei\n")
    said = refusal(capsys, f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}")
    assert "3 lines" in said and "has 2" in said


def test_an_unknown_key_is_told_with_the_nearest(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path / "a.txt", "hello world")
    assert "'documents'?" in refusal(capsys, file, "source.document=line", code=2)
    assert "tokenizer" in refusal(capsys, file, "tokenizer.kind=bpee", code=2)


def test_a_key_in_the_wrong_place_is_told_where_it_belongs(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path / "a.csv", "text,stars,other\nbroken\n")
    assert 'Write source.label="stars"' in refusal(capsys, file, "label=stars", code=2)
    assert "Write tokenizer.size=300" in refusal(capsys, file, "size=300", code=2)
    assert "Known: auto, bucket, pack" in refusal(capsys, file, "packing=none", code=2)
    assert "did you mean" in refusal(capsys, file, "vaild=0.1", code=2).lower()


def test_a_label_that_is_told_takes_the_place_of_a_target_that_was_guessed(tmp_path: Path, capsys: Capture) -> None:
    rows = [{"source": f"one {n}", "target": f"zwei {n}", "kind": "ab"[n % 2], "split": "train"} for n in range(40)]
    file = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert answer(capsys, file)["source"]["target"] == "target"
    found = answer(capsys, file, "source.label=kind")["source"]
    assert found["label"] == "kind" and found["text"] == "source" and "target" not in found
    assert answer(capsys, file, "source.text=target")["source"].get("target") is None


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tsv", "a.txt"])
def test_another_encoding_is_used_from_the_first_byte_on(
    name: str, encoding: str, tmp_path: Path, capsys: Capture
) -> None:
    texts = {
        "a.csv": "text,label\n" + "".join(f"Grüße {n},{'ab'[n % 2]}\n" for n in range(40)),
        "a.jsonl": "".join(f'{{"text": "Grüße {n}"}}\n' for n in range(40)),
        "a.tsv": "".join(f"Grüße {n}\tgreetings {n}\n" for n in range(40)),
        "a.txt": "".join(f"Grüße {n}\n" for n in range(40)),
    }
    file = write(tmp_path / name, texts[name].encode(encoding))
    said = refusal(capsys, file)
    assert name in said and "data.source.encoding=" in said
    found = answer(capsys, file, f"source.encoding={encoding}", "tokenizer.kind=byte")
    assert found["source"]["encoding"] == encoding and "Grüße" in found["samples"][0]["text"]


def test_bad_first_lines_are_skipped_where_that_is_asked_for(tmp_path: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) for n in range(200)]
    file = write(tmp_path / "a.jsonl", "\n".join(["{broken", *rows]))
    assert "a.jsonl:1: not JSON" in refusal(capsys, file)
    found = answer(capsys, file, "source.on_error=skip")
    assert found["records"] == 200 and found["labels"] == ["a", "b"]
    file = write(tmp_path / "b.jsonl", "\n".join([*["{broken"] * 3, *rows]))
    assert "3 of 203 are bad, more than 1%" in refusal(capsys, file, "source.on_error=skip")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["hello,a", "ragged,b,c", "fine,b"], "a.csv:3: 3 columns where the first row has 2"),
        (["hello,a", '"never closed,b'], "a.csv:3:"),
    ],
)
def test_a_ragged_table_is_told_by_its_line(rows: list[str], words: str, tmp_path: Path, capsys: Capture) -> None:
    assert words in refusal(capsys, write(tmp_path / "a.csv", "\n".join(["text,label", *rows])))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_label_that_training_never_saw_is_named(split: str, tmp_path: Path, capsys: Capture) -> None:
    rows = ["text,label,split", *(f"text {n},{'ab'[n % 2]},train" for n in range(20)), f"other,c,{split}"]
    said = refusal(capsys, write(tmp_path / "a.csv", "\n".join(rows)))
    assert "a.csv:22: label 'c' never occurs in training" in said


def test_what_looks_like_a_special_token_is_text(tmp_path: Path, capsys: Capture) -> None:
    text = "Say <|endoftext|> and <eos> or </s>, [MASK] <pad> <extra_id_0>."
    file = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": f"{text} {n}"}) for n in range(40)))
    for kind in ("bpe", "byte", "unigram", "character"):
        assert answer(capsys, file, f"tokenizer.kind={kind}")["samples"][0]["text"] == f"{text} 0", kind


def test_what_is_longer_than_the_context_is_counted(tmp_path: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": "word " * (10 if n % 2 else 100), "label": "ab"[n % 2]}) for n in range(40)]
    file = write(tmp_path / "a.jsonl", "\n".join(rows))
    found = answer(capsys, file, "tokenizer.kind=byte", "context=64")
    (said,) = (warning for warning in found["warnings"] if warning["check"] == "lengths")
    assert "20 of 40 records (50.0%) are longer than 62 tokens" in said["text"] and said["where"][0] == f"{file}:1"


@pytest.mark.parametrize(
    ("content", "words"),
    [("{}", "is not a tokenizer.json"), ("\x00\x01", "is not a tokenizer.json"), (None, "cannot be read")],
)
def test_a_bad_tokenizer_file_is_told(content: str | None, words: str, tmp_path: Path, capsys: Capture) -> None:
    file, tokenizer = write(tmp_path / "a.txt", "hello world\n" * 40), tmp_path / "tokenizer.json"
    if content is not None:
        tokenizer.write_text(content)
    said = refusal(capsys, file, "tokenizer.kind=file", f"tokenizer.path={tokenizer}")
    assert words in said and "tokenizer.json" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path / "a.txt", "hello")
    file.chmod(0)
    assert "a.txt: cannot be read: Permission denied" in refusal(capsys, file)


def test_a_link_to_nowhere_a_pipe_and_half_an_archive_are_told(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    assert "where there is nothing" in refusal(capsys, tmp_path / "link.txt")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(capsys, tmp_path / "pipe")
    half = gzip.compress(b"hello world\n" * 5000)[:60]
    assert "Is the file complete?" in refusal(capsys, write(tmp_path / "a.txt.gz", half))


def test_messages_cannot_drive_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path / "a.csv", "te\x1b[31mxt,lab\x07el\nabc,b\n")
    said = refusal(capsys, file, "source.text=other")
    assert "\x1b" not in said and "\x07" not in said and r"te\x1b[31mxt" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "valid: 5% of the records"),
        (["test=0.2", "valid=0.1"], "test: 20% of the records, valid: 10% of the records"),
        (["source.group=group"], "valid: 5% of the groups"),
        (["source.split=split"], "(given, valid: 5% of the records)"),
        (["valid=0"], "nothing is held out"),
    ],
)
def test_the_card_says_who_decided_about_the_splits(
    options: list[str], words: str, tmp_path: Path, capsys: Capture
) -> None:
    rows = [{"text": f"text {n}", "group": str(n // 4), "split": "test" if n % 9 == 0 else "train"} for n in range(80)]
    keys = ["text", *(option[7:].partition("=")[0] for option in options if option.startswith("source."))]
    lines = (json.dumps({key: row[key] for key in keys}) for row in rows)
    said = card(capsys, write(tmp_path / "a.jsonl", "\n".join(lines)), *options)
    assert words in " ".join(said.split())


def test_a_mistake_leaves_no_traceback_no_file_and_the_right_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "a.jsonl", '{"text": "fine"}\n{broken\n')
    for arguments, code, words in (([], 3, "a.jsonl:2: not JSON"), (["valid=2"], 2, "valid: must be below 1")):
        assert main(["data", str(file), *arguments]) == code
        out, err = capsys.readouterr()
        assert not out and "Traceback" not in err
        assert words in err and os.listdir(tmp_path) == ["a.jsonl"]
