"""Bad input to a source: every message names the file, the line or the field, and what to do."""

import gzip
import json
from pathlib import Path

import pytest

from anyformer.data.record import SourceSpec
from anyformer.data.sources.csv import CSV
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.gettext import Gettext
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.named_source import peek, source_with
from anyformer.data.sources.pairs import Pairs
from anyformer.data.sources.parquet import Parquet
from anyformer.data.sources.text import Text
from anyformer.errors import DataError

OF_A_PATH = (Text, Folder, JSONLines, CSV, Pairs, Gettext, Parquet)
OF_TEXT = (Text, JSONLines, CSV, Pairs, Gettext)
every_source = pytest.mark.parametrize("kind", OF_A_PATH, ids=lambda kind: kind.kind)
every_text_source = pytest.mark.parametrize("kind", OF_TEXT, ids=lambda kind: kind.kind)
PICTURE, ARCHIVE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"PK\x03\x04\x14\0\0\0\x08\0"


def write(path: Path, data: str | bytes) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def complaint(source: SourceSpec) -> str:
    """What reading it says: always a fault of the data, exit code 3."""
    with pytest.raises(DataError) as caught:
        list(source.records())
    assert caught.value.exit_code == 3
    return str(caught.value)


@every_source
def test_a_missing_path_is_told_with_the_nearest_name(kind: type, tmp_path: Path) -> None:
    write(tmp_path / "corpus.txt", "hello")
    said = complaint(kind(path=str(tmp_path / "corpsu.txt")))
    assert "corpsu.txt: no such file or folder" in said and f"Did you mean '{tmp_path / 'corpus.txt'}'?" in said
    assert "no folder" in complaint(kind(path=str(tmp_path / "nowhere" / "a.txt")))
    with pytest.raises(DataError, match="no such file"):
        kind(path=str(tmp_path / "missing")).fingerprint()


@every_source
def test_a_broken_link_is_told(kind: type, tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
    said = complaint(kind(path=str(tmp_path / "a.txt")))
    assert "is a link to" in said and "gone.txt" in said


def test_a_broken_link_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "hello")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    assert "b.txt: is a link to" in complaint(Folder(path=str(tmp_path)))


@pytest.mark.parametrize("kind", (Folder, JSONLines, CSV, Gettext, Parquet), ids=lambda kind: kind.kind)
def test_an_empty_folder_is_told(kind: type, tmp_path: Path) -> None:
    assert "the folder holds no file" in complaint(kind(path=str(tmp_path)))


def test_a_folder_of_empty_files_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "")
    assert "every file in the folder is empty" in complaint(Folder(path=str(tmp_path)))
    assert "holds no file called *.md" in complaint(Folder(path=str(tmp_path), pattern="*.md"))


@pytest.mark.parametrize("kind", (Text, Pairs), ids=lambda kind: kind.kind)
def test_a_folder_is_not_a_file_and_a_file_no_folder(kind: type, tmp_path: Path) -> None:
    assert "is a folder, not a file. Use data.source.kind=folder" in complaint(kind(path=str(tmp_path)))
    assert "is a file, not a folder" in complaint(Folder(path=write(tmp_path / "a.txt", "hello")))


@every_text_source
def test_an_empty_file_is_told(kind: type, tmp_path: Path) -> None:
    assert "a.txt: is empty (0 bytes)" in complaint(kind(path=write(tmp_path / "a.txt", "")))
    packed = write(tmp_path / "b.txt.gz", gzip.compress(b""))
    assert "b.txt.gz" in complaint(kind(path=packed))


@pytest.mark.parametrize("kind", (Text, JSONLines, Pairs), ids=lambda kind: kind.kind)
def test_a_file_of_blank_lines_is_told(kind: type, tmp_path: Path) -> None:
    assert "nothing in it to learn from" in complaint(kind(path=write(tmp_path / "a.txt", "\n\n\n")))


@every_text_source
@pytest.mark.parametrize("data", [PICTURE, ARCHIVE, b"\x7fELF", b"GIF89a", b"plain\0bytes", b"\x01\x02\x03\x04"])
def test_what_is_no_text_is_not_read_as_text(kind: type, data: bytes, tmp_path: Path) -> None:
    assert "a.txt: does not look like text" in complaint(kind(path=write(tmp_path / "a.txt", data)))
    packed = write(tmp_path / "a.txt.gz", gzip.compress(data))
    assert "does not look like text" in complaint(kind(path=packed))


def test_a_picture_is_called_a_picture(tmp_path: Path) -> None:
    assert "a PNG picture" in complaint(Text(path=write(tmp_path / "a.txt", PICTURE)))
    assert "a zip archive" in complaint(Text(path=write(tmp_path / "b.txt", ARCHIVE)))


@pytest.mark.parametrize("documents", ["file", "line", "paragraph"])
def test_bytes_in_another_encoding_are_told_by_line_and_offset(documents: str, tmp_path: Path) -> None:
    good = ("größe " * 60 + "\n") * 1_000  # the fault lies behind the first block
    path = write(tmp_path / "a.txt", good.encode() + b"fine\ncaf\xe9\n")
    said = complaint(Text(path=path, documents=documents))
    assert f"{path}:1002: byte {len(good.encode()) + 8} (0xe9) is not utf-8" in said
    assert "data.source.encoding=cp1252" in said
    assert list(Text(path=path, documents=documents, encoding="cp1252").records())


def test_a_letter_cut_off_at_the_end_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\nzwölf€".encode()[:-1])
    assert f"{path}:2: byte 10 (0xe2) is not utf-8" in complaint(Text(path=path))


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(str(n * n) for n in range(100_000)).encode())
    path = write(tmp_path / "a.txt.gz", packed[: len(packed) // 2])
    assert "Is the file complete?" in complaint(Text(path=path))
    damaged = write(tmp_path / "b.txt.gz", packed[:2000] + b"\xff" * 50 + packed[2050:])
    assert "b.txt.gz:" in complaint(Text(path=damaged))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.data.sources.files.LONGEST", 1000)
    path = write(tmp_path / "a.jsonl", "short\n" + "x" * 2000)
    assert ":2: a line of more than 1,000 characters" in complaint(Text(path=path, documents="line"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "a",}', "not JSON: Expecting property name enclosed in double quotes at column 14"),
        ("[1, 2]", "expected an object with named fields, got a list"),
        ('"just text"', "expected an object with named fields, got 'just text'"),
        ('{"txt": "a", "id": 1}', "no field 'text'; there is txt, id. Say which: data.source.text=txt"),
        ('{"text": null}', "field 'text' should hold text, got nothing"),
        ('{"text": {"en": "a"}}', "field 'text' should hold text, got a table"),
        ('{"text": "\\ud800"}', "holds half a character"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_bad_json_line_is_told_with_its_number(line: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n\n{line}\n')
    complained = complaint(JSONLines(path=path))
    assert complained.startswith(f"{path}:3: ") and said in complained


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('\n[{"text": "a"},\n{"text": 1,}]', "a.json:3: not JSON: "),
        ('[{"text": "a"}, 3]', "a.json:item 2: expected an object with named fields, got 3"),
        ('[{"text": "a"}]\n{"text": "b"}', "a.json:2: not JSON: Extra data"),
        ('{\n"text": "a"}', "Write one object a line, or one list of objects."),
    ],
)
def test_a_fault_in_a_json_list_is_told_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    assert said in complaint(JSONLines(path=write(tmp_path / "a.json", text)))


def test_a_split_that_is_none_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a", "split": "holdout"}')
    assert "should hold train, valid or test, got 'holdout'" in complaint(JSONLines(path=path, split="split"))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("text,label\na,1\nb\n", ":3: 1 column where the first row has 2"),
        ("text,label\na,1\nb,2,3\n", ":3: 3 columns where the first row has 2"),
        ('text,label\na,1\n"b,2\n', ":3: unexpected end of data"),
        ('text,label\n"a"b,1\n', ":2: ',' expected after '\"'"),
        ("body,label\na,1\n", ":1: no column 'text'; there is body, label"),
    ],
)
def test_a_ragged_table_is_told_with_its_line(table: str, said: str, tmp_path: Path) -> None:
    assert said in complaint(CSV(path=write(tmp_path / "a.csv", table)))


def test_a_column_number_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n")
    assert "no column 3: there are 2, counted from 1" in complaint(CSV(path=path, text="#3"))


def test_parallel_files_of_different_lengths_are_told_with_both_counts(tmp_path: Path) -> None:
    english, german = write(tmp_path / "a.en", "a\n" * 1200), write(tmp_path / "a.de", "b\n" * 1199)
    said = complaint(Pairs(path=english, target_path=german))
    assert f"{english} has 1,200 lines, {german} has 1,199" in said
    assert f"{german} has 1,199 lines" in complaint(Pairs(path=german, target_path=english))


def test_a_pair_without_its_tab_is_told(tmp_path: Path) -> None:
    assert ":2: expected source, tab, target; got 1" in complaint(Pairs(path=write(tmp_path / "a.tsv", "a\tb\nc\n")))
    assert "data.source.kind=csv" in complaint(Pairs(path=write(tmp_path / "b.tsv", "a\tb\tc\n")))


def mixed(tmp_path: Path, bad: int) -> JSONLines:
    rows = [json.dumps({"text": str(n)}) for n in range(300)] + ["{"] * bad
    return JSONLines(path=write(tmp_path / "a.jsonl", "\n".join(rows)), on_error="skip")


def test_bad_lines_may_be_skipped_and_are_counted(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"left out 3 of 303 that are bad\. The first: .*a\.jsonl:301: not JSON"):
        assert len(list(mixed(tmp_path, 3).records())) == 300


def test_more_than_one_in_a_hundred_is_not_skipped(tmp_path: Path) -> None:
    assert "4 of 304 are bad, more than 1%" in complaint(mixed(tmp_path, 4))


def test_undecodable_lines_may_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"good\n" * 200 + b"caf\xe9\n" + b"good\n")
    source = Text(path=path, documents="line", on_error="skip")
    with pytest.warns(UserWarning, match=r"a\.txt:201: holds a byte that is not in its encoding"):
        assert [record.text for record in source.records()] == ["good"] * 201


def test_a_file_of_a_folder_that_cannot_be_read_may_be_skipped(tmp_path: Path) -> None:
    for number in range(150):
        write(tmp_path / f"{number:03}.txt", "good")
    write(tmp_path / "070.txt", PICTURE)
    assert "070.txt: does not look like text" in complaint(Folder(path=str(tmp_path)))
    with pytest.warns(UserWarning, match=r"left out 1 of 150 that are bad"):
        assert len(list(Folder(path=str(tmp_path), on_error="skip").records())) == 149


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_rows_without_a_label_are_left_out_on_demand_and_counted(tmp_path: Path, name: str) -> None:
    rows = [("good", "5"), ("bad", ""), ("fair", "NA"), ("fine", "4")]
    table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    objects = "".join(json.dumps({"text": text, "label": label or None}) + "\n" for text, label in rows)
    path = write(tmp_path / name, table if name == "a.csv" else objects)
    with pytest.raises(DataError, match=r"the label is empty.*data.source.unlabelled=''"):
        peek(source_with(path, {}))
    with pytest.warns(UserWarning, match="left out 2 of 4 rows without a label"):
        assert [record.text for record in source_with(path, {"unlabelled": "NA"}).records()] == ["good", "fine"]
