"""`anyformer data`: what it says of good data, and how it refuses bad ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli.main import main

Capture = pytest.CaptureFixture[str]
KEYS = {"source", "tokenizer", "vocabulary", "records", "characters", "tokens", "sampled", "splits", "overlap"}
KEYS |= {"lengths", "labels", "warnings", "samples"}
SHARED = Path(__file__).parents[2] / "shared" / "data"
BUILT_IN = {
    "python_topics": [], "docstring_summaries": [], "number_words": ["source.count=200"],
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


LARGE = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("docstrings", "unicode_names")]


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


def test_warnings_name_lines(tmp_path: Path, capsys: Capture) -> None:
    lines = [f"line number {n}\tZeile Nummer {n}" for n in range(50)]
    file = write(tmp_path / "a.tsv", "\n".join([*lines, "something\t "]) + "\n")
    assert answer(capsys, file, "source.kind=pairs")["warnings"] == [
        {"check": "empty", "text": "1 of 51 records (2.0%) have an empty target.", "where": [f"{file}:51"]}
    ]
    assert ":51" in card(capsys, file, "source.kind=pairs")


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
    assert answer(capsys, write(tmp_path / "a.txt", "hello world"))["characters"] == 11
    assert "hello" in card(capsys, tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["en-de.tsv.gz", "spam.jsonl.gz"])
def test_real_files_are_understood(name: str, capsys: Capture) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"shared/data/{name} is not here")
    found = answer(capsys, SHARED / name, "tokenizer.kind=byte")
    assert set(found["splits"]) == {"train", "valid", "test"} and found["records"] > 1000


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
