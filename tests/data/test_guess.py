"""A bare path becomes the source that reads it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from anyformer.data.sources.named_source import guess, peek, source_with
from anyformer.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
USUAL = {"path", "encoding", "on_error", "documents", "piece", "header"}


def write(path: Path, data: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


def understood(path: Path | str) -> dict[str, Any]:
    """The kind and the columns; the rest is usual."""
    return {key: value for key, value in guess(str(path)).to_dict().items() if key not in USUAL}


@pytest.mark.parametrize("name", ["a.txt", "a.md", "README", "a.txt.gz", "a.unheard"])
def test_any_other_file_is_text(name: str, tmp_path: Path) -> None:
    source = guess(str(write(tmp_path / name, "once upon a time\n" * 2000)))
    assert source.kind == "text" and len(list(source.records())) > 1


def test_a_short_text_is_cut_small_enough_to_be_split(tmp_path: Path) -> None:
    source = guess(str(write(tmp_path / "a.txt", "once upon a time\n" * 1200)))  # 20 kB
    assert len(list(source.records())) >= 20
    long = guess(str(write(tmp_path / "b.txt", "long " * 200_000)))
    assert max(len(record.text) for record in long.records()) in range(16_000, 16_385)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"text": "a"}, {"text": "text"}),
        ({"id": 1, "Body": "a b c", "title": "a"}, {"text": "Body"}),
        ({"x": "a b c", "y": "a"}, {"text": "x"}),
        ({"text": "a", "label": 1}, {"text": "text", "label": "label"}),
        ({"text": "a", "price": 1.5}, {"text": "text", "label": "price"}),
        ({"document": "a", "summary": "b"}, {"text": "document", "target": "summary"}),
        ({"de": "b", "en": "a"}, {"text": "en", "target": "de"}),
        ({"translation": {"fr": "b", "en": "a"}}, {"text": "translation.en", "target": "translation.fr"}),
        ({"split": "dev", "group": "g", "text": "a"}, {"text": "text", "group": "group", "split": "split"}),
        ({"split": "a b", "text": "a"}, {"text": "text"}),
        ({"tokens": ["a"], "ner_tags": [0]}, {"text": "tokens", "tags": "ner_tags"}),
        (
            {"premise": "a", "hypothesis": "b", "label": 1},
            {"text": "premise", "target": "hypothesis", "label": "label"},
        ),
        (
            {"id": 7, "Question1": "a", "Question2": "b", "is_duplicate": 0},
            {"text": "Question1", "target": "Question2", "label": "is_duplicate"},
        ),
        ({"question": "a", "answer": "b"}, {"text": "question", "target": "answer"}),
    ],
)
def test_fields_of_json_are_known_by_their_names(row: Any, columns: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", json.dumps(row) + "\n")
    assert understood(path) == {"kind": "jsonl", **columns}
    assert list(guess(str(path)).records())


def test_a_json_file_is_a_list_of_objects_or_lines(tmp_path: Path) -> None:
    for text in (
        '[\n{"text": "a"},\n\n{"text": "b"}]',
        '{"text": "a"}\n{"text": "b"}\n',
        '[{"text": "a"}, {"text": "b"}]',
    ):
        path = write(tmp_path / "a.json", text)
        assert understood(path) == {"kind": "jsonl", "text": "text"}
        assert [record.text for record in guess(str(path)).records()] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "table", "expected"),
    [
        ("a.csv", "text,label\na,1\n", {"kind": "csv", "text": "text", "label": "label"}),
        ("a.csv", "remark;points\nso good;1\n", {"kind": "csv", "text": "remark", "delimiter": ";"}),
        ("a.csv", "text|label\nso, good|1\n", {"kind": "csv", "text": "text", "label": "label", "delimiter": "|"}),
        ("a.csv", "English,German\na,b\n", {"kind": "csv", "text": "English", "target": "German"}),
        ("a.tsv", "a cat\teine Katze\na dog\tein Hund\n", {"kind": "pairs"}),
        ("a.csv", "a cat,eine Katze\na dog,ein Hund\n", {"kind": "csv", "text": "#1", "target": "#2"}),
        ("a.tsv", "spam\tbuy this now\n" * 2 + "ham\thello you\n" * 3, {"kind": "csv", "text": "#2", "label": "#1"}),
        ("a.tsv", "train\tx\ta cat\teine Katze\ntest\tx\ta dog\tein Hund\n",
         {"kind": "csv", "text": "#3", "target": "#4", "group": "#2", "split": "#1"}),
        ("a.csv", "just one column\nof text\n", {"kind": "csv", "text": "#1"}),
    ],
)  # fmt: skip
def test_columns_of_a_table_are_known_by_title_or_content(
    name: str, table: str, expected: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path / name, table)
    assert understood(path) == expected
    assert list(guess(str(path)).records())


def test_a_file_beside_its_translation_is_half_of_a_pair(tmp_path: Path) -> None:
    english, german = write(tmp_path / "talks.en", "a\n"), write(tmp_path / "talks.de", "b\n")
    assert understood(english) == {"kind": "pairs", "target_path": str(german)}
    assert understood(f"{german},{english}") == {"kind": "pairs", "target_path": str(english)}
    write(tmp_path / "talks.fr", "c\n")  # which of two cannot be known
    assert understood(english) == {"kind": "text"}


def test_catalogs_are_gettext_alone_or_in_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "locale" / "de" / "LC_MESSAGES" / "a.po", 'msgid "a"\nmsgstr "b"\n')
    assert understood(path) == understood(tmp_path / "locale") == {"kind": "gettext"}
    assert [record.target for record in guess(str(tmp_path / "locale")).records()] == ["b"]


def test_a_folder_is_what_most_of_its_files_are(tmp_path: Path) -> None:
    write(tmp_path / "a" / "one.txt", "hello")
    assert understood(tmp_path / "a") == {"kind": "folder", "pattern": "*"}
    write(tmp_path / "a" / "picture.png", "\x00\x01")
    assert understood(tmp_path / "a") == {"kind": "folder", "pattern": "*.txt"}
    write(tmp_path / "b" / "README.md", "what this is")
    write(tmp_path / "b" / "train.jsonl", '{"body": "x", "class": "y"}')
    assert understood(tmp_path / "b") == {"kind": "jsonl", "text": "body", "label": "class"}
    with pytest.raises(DataError, match="holds no file"):
        (tmp_path / "c").mkdir()
        guess(str(tmp_path / "c"))


def test_only_an_explicit_reference_means_the_hub(tmp_path: Path) -> None:
    assert understood("hf://owner/name@main") == {"kind": "hub", "name": "owner/name", "revision": "main",
                                                  "splits": [], "text": "text"}  # fmt: skip
    with pytest.raises(DataError, match="no such file or folder"):
        guess("owner/name")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("en-de.tsv.gz", {"kind": "csv", "split": "#1", "group": "#2", "text": "#3", "target": "#4"}),
        ("descriptions.jsonl.gz", {"kind": "jsonl", "split": "split", "text": "description", "target": "synopsis"}),
        ("spam.jsonl.gz", {"kind": "jsonl", "split": "split", "text": "text", "label": "label"}),
        ("speeches.jsonl.gz", {"kind": "jsonl", "split": "split", "text": "text"}),
    ],
)
def test_real_files_are_understood(name: str, expected: dict[str, str]) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not beside this checkout")
    assert understood(SHARED / name) == expected


def test_text_and_markdown_are_both_read_and_the_rest_is_named(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.txt", f"text {number}")
        write(tmp_path / "sub" / f"{number}.md", f"notes {number}")
    write(tmp_path / "picture.png", "\x00\x01")
    write(tmp_path / "table.csv", "text,label\na,1\n")
    source = guess(str(tmp_path))
    assert understood(tmp_path) == {"kind": "folder", "pattern": "*.md,*.txt"} and len(list(source.records())) == 8
    (warning,) = source.warnings()
    assert "2 files are not read (1 .png: picture.png, 1 .csv: table.csv)" in warning
    assert guess(str(write(tmp_path / "only" / "a.txt", "a").parent)).warnings() == []


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_first_row_that_is_probably_a_header_is_told(separator: str, tmp_path: Path) -> None:
    rows = [separator.join((f"sentence number {n} of them", "ab"[n % 2])) for n in range(20)]
    path = write(tmp_path / f"a.{'tsv' if separator == chr(9) else 'csv'}", "\n".join([f"body{separator}kind", *rows]))
    (warning,) = guess(str(path)).warnings()
    assert "a.tsv:1" in warning or "a.csv:1" in warning
    assert warning.endswith("data.source.header=yes data.source.text=body data.source.label=kind")
    named = guess(str(path), {"header": "yes", "text": "body", "label": "kind"}).with_("label", "kind")
    assert named.warnings() == []
    path.write_text("\n".join(rows))
    assert guess(str(path)).warnings() == []


def test_pairs_with_a_header_of_unusual_names_are_told(tmp_path: Path) -> None:
    rows = [f"sentence number {n} of them\tSatz Nummer {n} davon" for n in range(20)]
    assert (
        "data.source.target=Ziel"
        in guess(str(write(tmp_path / "a.tsv", "\n".join(["Quelle\tZiel", *rows])))).warnings()[0]
    )
    assert guess(str(write(tmp_path / "b.tsv", "\n".join(rows)))).kind == "pairs"


@pytest.mark.row("SST-11", clause="loader reads a local SST-2 TSV into texts and labels")
def test_a_file_of_sst_2_gives_sentences_and_their_labels(tmp_path: Path) -> None:
    lines = ["sentence\tlabel", "a fine film , warm and wise \t1", 'it\'s "dull" and far too long \t0']
    source = guess(str(write(tmp_path / "train.tsv", "\n".join(lines) + "\n")))
    found = [(record.text.strip(), record.label) for record in source.records()]
    assert found == [("a fine film , warm and wise", "1"), ('it\'s "dull" and far too long', "0")]


def test_an_instruction_is_the_source_and_one_with_an_input_is_refused(tmp_path: Path) -> None:
    rows = [json.dumps({"instruction": f"add {number}", "input": "", "output": "yes"}) for number in range(9)]
    columns = understood(write(tmp_path / "a.jsonl", "\n".join(rows)))
    assert columns == {"kind": "jsonl", "text": "instruction", "target": "output"}
    rows[3] = json.dumps({"instruction": "add", "input": "2 and 3", "output": "5"})
    with pytest.raises(DataError, match="Join the first two"):
        guess(str(write(tmp_path / "b.jsonl", "\n".join(rows))))


def test_line_ends_of_windows_are_no_part_of_a_text(tmp_path: Path) -> None:
    story = "once upon a time\n\nthere was a line\n" * 400
    texts = [
        [record.text for record in guess(str(write(tmp_path / name, story.replace("\n", end)))).records()]
        for name, end in (("a.txt", "\n"), ("b.txt", "\r\n"))
    ]
    assert "".join(texts[0]) == "".join(texts[1]) == story


@pytest.mark.parametrize(
    ("label", "complaint"), [("", ":3: the label is empty"), ("nan", ":3: the number 'nan' is not finite")]
)
def test_labels_that_cannot_be_learned_are_refused_with_their_line(tmp_path: Path, label: str, complaint: str) -> None:
    file = write(tmp_path / "a.csv", f"text,score\nfine,1.5\nbad,{label}\nfair,2.5\n")
    with pytest.raises(DataError, match=complaint):
        peek(guess(str(file), {"text": "text", "label": "score", "header": True}))


def test_folders_that_may_be_labels_are_named(tmp_path: Path) -> None:
    for name in ("train/good", "train/bad", "test/good", "test/bad"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(5):
            write(tmp_path / name / f"{number}.txt", f"a text of {name}")
    (warning,) = guess(str(tmp_path)).warnings()
    assert "2 folders are 'bad', 'good'; if these are the labels: data.source.labels=folder" in warning
    assert not source_with(str(tmp_path), {"labels": "folder"}).warnings()
    write(tmp_path / "readme.txt", "a file beside the folders")
    assert not guess(str(tmp_path)).warnings()


def test_a_list_inside_the_only_object_of_a_file_is_named(tmp_path: Path) -> None:
    rows = [{"question": "why?", "answer": "because"}] * 2
    path = str(write(tmp_path / "wrapped.json", json.dumps({"version": 1, "data": rows})))
    with pytest.raises(DataError, match=r"a list of 2 objects in 'data'. Save that list alone: jq '.\[\"data\"\]'"):
        guess(path)
    talk = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    assert understood(write(tmp_path / "chat.jsonl", json.dumps(talk)))["kind"] == "chat"


@pytest.mark.parametrize(
    ("value", "advice"),
    [({"title": "a", "body": "long"}, "text=text.body"), ([{"a": 1}], "text=FIELD")],
)
def test_a_field_that_holds_no_text_is_answered_with_what_to_write(tmp_path: Path, value: Any, advice: str) -> None:
    path = str(write(tmp_path / "a.jsonl", "\n".join([json.dumps({"text": value})] * 3)))
    with pytest.raises(DataError, match=f"should hold text, got a .*: data.source.{advice}"):
        peek(guess(path, {"text": "text", "label": None}))


def test_null_leaves_a_column_out_and_changes_no_other(tmp_path: Path) -> None:
    table = str(write(tmp_path / "a.csv", "question,answer,category\nwhy,because,a\nwho,me,b\n"))
    assert guess(table, {"label": None}).to_dict()["target"] == "answer"
    assert guess(table, {"target": None}).to_dict()["label"] == "category"
    rows = str(write(tmp_path / "b.tsv", "buy this now\tspam\n" * 2 + "hello you\tham\n" * 3))
    assert next(record.text for record in guess(rows, {"label": None}).records()) == "buy this now"
    compared = str(write(tmp_path / "c.csv", "premise,hypothesis,label\na,b,1\nc,d,0\n"))
    assert "label" not in guess(compared, {"label": None}).to_dict()


def test_names_of_columns_with_spaces_are_quoted_for_the_shell(tmp_path: Path) -> None:
    rows = "".join(f"the printer {n} is broken,{'ab'[n % 2]}\n" for n in range(20))
    source = guess(str(write(tmp_path / "a.csv", f"Description,Issue Type\n{rows}")), {"text": "Description"})
    assert source.warnings()[0].endswith("'data.source.label=Issue Type'")
    padded = str(write(tmp_path / "b.csv", "id, Body ,label\n1,so good,a\n"))
    assert next(source_with(padded, {"text": "Body"}).records()).text == "so good"
    with pytest.raises(DataError, match=r"Say which: 'data.source.label=Issue Type'"):
        peek(source_with(str(tmp_path / "a.csv"), {"text": "Description", "label": "Issue type"}))


def test_labelled_lines_of_fasttext_are_named_with_the_way_to_a_table(tmp_path: Path) -> None:
    text = "__label__good so nice\n__label__bad so sad\n"
    (warning,) = guess(str(write(tmp_path / "a.txt", text))).warnings()
    assert r"sed -E 's/^__label__([^ ]+) /\1\t/'" in warning
    assert not guess(str(write(tmp_path / "b.txt", text + "a line\n"))).warnings()
