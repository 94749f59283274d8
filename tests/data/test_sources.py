"""Sources of the user's own files: what they give, how they stream, and what they say of bad input."""

import csv
import gzip
import itertools
import json
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anyformer.core import decode
from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.csv import CSV
from anyformer.data.sources.files import documents, lines
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.gettext import Gettext
from anyformer.data.sources.hub import Hub
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.pairs import Pairs
from anyformer.data.sources.parquet import Parquet
from anyformer.data.sources.text import Text
from anyformer.errors import DataError, SpecError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
KINDS = (Text, Folder, JSONLines, CSV, Pairs, Gettext, Parquet, Hub)


def write(path: Path, data: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return str(path)


def texts(source: SourceSpec) -> list[str]:
    return [record.text for record in source.records()]


def halves(source: SourceSpec) -> list[tuple[str, str | None]]:
    return [(record.text, record.target) for record in source.records()]


def complaint(source: SourceSpec) -> str:
    """What reading it says: always a fault of the data, exit code 3."""
    with pytest.raises(DataError) as caught:
        list(source.records())
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_source_is_plain_data_and_back(kind: type[SourceSpec]) -> None:
    for source in kind.examples():
        assert decode(SourceSpec, source.to_dict()) == source


@pytest.mark.row("TSK-09", clause="local text files are loaded in place of a corpus")
def test_a_file_is_one_document_in_pieces_that_add_up_to_it(tmp_path: Path) -> None:
    text = "\n".join(f"line {n} of a story" + "\n" * (n % 5 == 0) for n in range(500))
    source = Text(path=write(tmp_path / "story.txt", text), piece=300)
    records = list(source.records())
    assert "".join(record.text for record in records) == text
    assert max(len(record.text) for record in records) <= 300
    assert all(record.text.endswith("\n") for record in records[:-1])
    for record in records:  # each says the line on which it begins
        number = int(record.where.rpartition(":")[2])
        assert text.split("\n")[number - 1] == record.text.split("\n")[0]


def test_a_text_without_line_ends_is_cut_after_words_or_anywhere(tmp_path: Path) -> None:
    words = Text(path=write(tmp_path / "words.txt", "many words " * 100), piece=50)
    assert all(text.endswith(" ") and len(text) <= 50 for text in texts(words))
    solid = Text(path=write(tmp_path / "solid.txt", "x" * 120), piece=50)
    assert [len(text) for text in texts(solid)] == [50, 50, 20]


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\ufeff"), min_size=1), st.integers(1, 9)
)
def test_no_letter_is_lost_whatever_the_text_and_the_size_of_pieces(text: str, piece: int) -> None:
    assume(text.strip())
    with tempfile.TemporaryDirectory() as folder:
        pieces = texts(Text(path=write(Path(folder) / "a.txt", text), piece=piece))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert max(map(len, pieces)) <= piece


def test_documents_may_be_lines_or_paragraphs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\r\ntwo\r\n\r\n \r\nthree\r\n")
    assert texts(Text(path=path, documents="line")) == ["one", "two", "three"]
    records = list(Text(path=path, documents="paragraph").records())
    assert [(record.text, record.where) for record in records] == [("one\ntwo", f"{path}:1"), ("three", f"{path}:5")]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a\u2028b\x0cc\x85\n\nd")
    assert list(lines(Path(path))) == [(1, "a\u2028b\x0cc\x85"), (2, ""), (3, "d")]


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    assert texts(Text(path=write(tmp_path / "a.txt", "\ufeffhello"))) == ["hello"]
    wide = write(tmp_path / "b.txt", "grüße".encode("utf-16"))
    assert texts(Text(path=wide, encoding="utf-16")) == ["grüße"]
    assert "encoding=utf-16" in complaint(Text(path=wide))


def test_letters_across_blocks_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.data.sources.files.BLOCK", 5)
    text = "äöü€😀\n" * 20
    path = Path(write(tmp_path / "a.txt.gz", text))
    assert "".join(piece for _, piece in documents(path, "file", None, "utf-8", "stop")) == text
    assert [line for _, line in lines(path)] == ["äöü€😀"] * 20


@pytest.mark.row("TSK-09", clause="local text files are loaded in place of a corpus")
def test_a_folder_is_read_in_a_stable_order_with_a_group_for_each_file(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "a/d.md", ".hidden/e.txt", "empty.txt"):
        write(tmp_path / name, "" if name == "empty.txt" else name)
    records = list(Folder(path=str(tmp_path)).records())
    assert [(record.text, record.group) for record in records] == [
        (name, name) for name in ("a/c.txt", "a/d.md", "b.txt")
    ]
    assert texts(Folder(path=str(tmp_path), pattern="*.md")) == ["a/d.md"]


def test_folders_may_name_splits_and_labels(tmp_path: Path) -> None:
    for name in ("train/pos/1.txt", "train/neg/2.txt", "test/pos/3.txt"):
        write(tmp_path / name, "good or bad")
    records = list(Folder(path=str(tmp_path), labels="folder").records())
    assert [(record.split, record.label) for record in records] == [("test", "pos"), ("train", "neg"), ("train", "pos")]
    (tmp_path / "test" / "pos" / "3.txt").unlink()  # a folder called train alone says nothing
    assert {record.split for record in Folder(path=str(tmp_path)).records()} == {None}


def test_json_fields_go_where_they_are_told(tmp_path: Path) -> None:
    row = {"a": {"b": "text"}, "to": "target", "y": 3, "doc": "d7", "part": "validation", "x.y": "dotted"}
    path = write(tmp_path / "a.jsonl.gz", json.dumps(row) + "\n\n" + json.dumps(row))
    source = JSONLines(path=path, text="a.b", target="to", label="y", group="doc", split="part")
    expected = Record(text="text", target="target", label="3", group="d7", split="valid", where=f"{path}:1")
    assert next(source.records()) == expected
    assert [record.where for record in source.records()] == [f"{path}:1", f"{path}:3"]
    assert texts(JSONLines(path=path, text="x.y")) == ["dotted", "dotted"]


def test_json_lists_are_words_tags_and_choices(tmp_path: Path) -> None:
    row = {"tokens": ["Ann", "left"], "tags": ["PER", "O"], "choices": ["yes", "no"], "label": 0}
    path = write(tmp_path / "a.jsonl", json.dumps(row))
    [record] = JSONLines(path=path, text="tokens", tags="tags", choices="choices", label="label").records()
    assert (record.text, record.tags, record.choices, record.label) == ("Ann left", ("PER", "O"), ("yes", "no"), "0")
    path = write(tmp_path / "b.jsonl", json.dumps(row | {"tags": ["O"]}))
    assert f"{path}:1: 2 words but 1 tag" in complaint(JSONLines(path=path, text="tokens", tags="tags"))


def test_files_of_a_folder_are_splits(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        write(tmp_path / f"{name}.jsonl", json.dumps({"text": name}))
        write(tmp_path / f"{name}.csv", f"text\n{name}\n")
    for source in (JSONLines(path=str(tmp_path)), CSV(path=str(tmp_path))):
        assert [(record.text, record.split) for record in source.records()] == [
            (n, n) for n in ("test", "train", "valid")
        ]


def test_a_table_has_columns_by_name_or_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,text,label\n1,"a, ""b""\nc",x\n2,d,y\n')
    records = list(CSV(path=path, label="label").records())
    assert [(r.text, r.label, r.where) for r in records] == [('a, "b"\nc', "x", f"{path}:2"), ("d", "y", f"{path}:4")]
    assert [r.label for r in CSV(path=path, text="#2", label="3").records()] == ["x", "y"]
    assert texts(CSV(path=path, text="#2", header="no"))[0] == "text"
    bare = write(tmp_path / "b.tsv", 'say "hi\tsag "hallo\n')
    assert halves(CSV(path=bare, text="#1", target="#2")) == [('say "hi', 'sag "hallo')]
    semicolons = write(tmp_path / "c.csv", "text;label\na,b;1\n")
    assert texts(CSV(path=semicolons, delimiter=";")) == ["a,b"]


@pytest.mark.row("WMT-09", clause=("loads WMT pairs from local files", "loader returns the pairs of a tiny TSV file"))
def test_pairs_are_two_files_or_one_with_tabs(tmp_path: Path) -> None:
    english, german = write(tmp_path / "a.en", "one\n\nthree\n"), write(tmp_path / "a.de", "eins\nzwei\ndrei")
    pairs = [("one", "eins"), ("", "zwei"), ("three", "drei")]
    assert halves(Pairs(path=english, target_path=german)) == pairs
    assert halves(Pairs(path=write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs)))) == pairs


PO = (
    r"""
# a comment
msgid ""
msgstr "Content-Type: text/plain; charset=ISO-8859-1\n"

#: file.c:3
msgid "Hello, \"world\"\n"
msgstr ""
"Gr\u00fc\u00dfe, "
"\"Welt\"\n"

msgctxt "verb"
msgid "Open"
msgstr "\303\226ffnen"
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#, c-format, fuzzy
msgid "Close"
msgstr "Falsch"

msgid "Untranslated"
msgstr ""

#, fuzzy
#~ msgid "Old"
#~ msgstr "Alt"

msgid "Last"
msgstr "Letzte"
""".replace(r"\u00fc", "ü")
    .replace(r"\u00df", "ß")
    .replace(r"\303\226", r"\326")
)
PAIRS = [('Hello, "world"\n', 'Grüße, "Welt"\n'), ("Open", "Öffnen"), ("%d file", "%d Datei")]
PAIRS += [("%d files", "%d Dateien"), ("Last", "Letzte")]


def compiled(pairs: dict[str, str]) -> bytes:
    """A .mo file, by the description of its format in gettext's manual."""
    rows = sorted((key.encode(), value.encode()) for key, value in pairs.items())
    tables, strings, place = ([], []), b"", 28 + 16 * len(rows)
    for side, table in enumerate(tables):
        for row in rows:
            table += [len(row[side]), place + len(strings)]
            strings += row[side] + b"\0"
    head = [0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0]
    return b"".join(number.to_bytes(4, "little") for number in [*head, *tables[0], *tables[1]]) + strings


def test_a_po_catalog_gives_its_finished_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "de.po", PO.encode("latin-1"))
    assert halves(Gettext(path=path)) == PAIRS
    lines_of = PO.split("\n")
    for record in Gettext(path=path).records():
        assert lines_of[int(record.where.rpartition(":")[2]) - 1].startswith(("msgid", "msgctxt"))


def test_a_mo_catalog_gives_its_pairs(tmp_path: Path) -> None:
    header = {"": "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=n != 1;\n"}
    rows = header | {"verb\x04Open": "Öffnen", "file\0files": "Datei\0Dateien", "Last": "Letzte"}
    path = write(tmp_path / "de.mo", compiled(rows))
    assert sorted(halves(Gettext(path=path))) == [("Last", "Letzte"), ("Open", "Öffnen"), ("file", "Datei")]
    assert "not a catalog" in complaint(Gettext(path=write(tmp_path / "fr.mo", b"\xde\x12\x04\x95 broken")))


def test_a_folder_of_catalogs_is_read_in_one_language(tmp_path: Path) -> None:
    for language in ("de", "fr"):
        entry = f'msgid "Yes"\nmsgstr "{language}"\n'
        write(tmp_path / language / "LC_MESSAGES" / "git.po", entry)
        write(tmp_path / language / "LC_MESSAGES" / "git.mo", compiled({"Yes": language}))
    assert "catalogs of 2 languages (de, fr)" in complaint(Gettext(path=str(tmp_path)))
    assert "no catalog of the language 'it'" in complaint(Gettext(path=str(tmp_path), language="it"))
    assert halves(Gettext(path=str(tmp_path), language="fr")) == [("Yes", "fr")]  # the .mo says the same once more
    assert halves(Gettext(path=str(tmp_path / "de"))) == [("Yes", "de")]


def test_a_catalog_says_where_it_is_broken(tmp_path: Path) -> None:
    assert ":2: neither a comment" in complaint(Gettext(path=write(tmp_path / "a.po", 'msgid "a"\nmsgstr "b\n')))
    assert ":1: the last entry has no msgstr" in complaint(Gettext(path=write(tmp_path / "b.po", 'msgid "a"\n')))


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    row = json.dumps({"text": "word " * 50}) + "\n"
    path = write(tmp_path / "big.jsonl", row * 60_000)  # 16 MB
    sources = (JSONLines(path=path), Text(path=path), Text(path=path, documents="line"))
    for source in sources:
        tracemalloc.start()
        assert sum(1 for _ in itertools.islice(source.records(), 2_000)) > 900
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3_000_000, source.kind


def test_the_first_record_comes_before_a_later_fault(tmp_path: Path) -> None:
    good, bad = json.dumps({"text": "fine " * 200}) + "\n", "not json\n"
    records = JSONLines(path=write(tmp_path / "a.jsonl.gz", good * 2000 + bad)).records()
    assert next(records).text.startswith("fine")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:2001: not JSON: Expecting value at column 1"):
        list(records)


def test_a_fingerprint_is_of_the_bytes_and_options_not_of_the_place(tmp_path: Path) -> None:
    one, other = Text(path=write(tmp_path / "a.txt", "same")), Text(path=write(tmp_path / "b.txt", "same"))
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != one.with_("documents", "line").fingerprint()
    write(tmp_path / "a.txt", "sane")
    assert one.fingerprint() != other.fingerprint()
    folder = Folder(path=str(tmp_path))
    before = folder.fingerprint()
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    assert folder.fingerprint() != before


@pytest.mark.parametrize(
    ("name", "source", "counts", "groups"),
    [
        pytest.param(
            "en-de.tsv.gz",
            CSV(path="", split="#1", group="#2", text="#3", target="#4"),
            (77_554, 1_662, 1_358),
            True,
            marks=pytest.mark.slow,
        ),
        ("speeches.jsonl.gz", JSONLines(path="", split="split", group="name"), (208, 10, 15), True),
        ("spam.jsonl.gz", JSONLines(path="", split="split", label="label"), (4_901, 291, 289), False),
    ],
)
def test_real_files_give_their_splits_and_groups(
    name: str, source: SourceSpec, counts: tuple[int, int, int], groups: bool
) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not beside this checkout")
    splits, owners = Counter[str | None](), dict[str | None, set[str | None]]()
    for record in source.with_("path", str(SHARED / name)).records():
        splits[record.split] += 1
        owners.setdefault(record.group, set()).add(record.split)
    assert (splits["train"], splits["valid"], splits["test"]) == counts and splits.total() == sum(counts)
    if groups:
        assert len(owners) > 100 and None not in owners
        assert all(len(where) == 1 for where in owners.values())


def test_an_extra_that_is_missing_is_told_with_its_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    packed = write(tmp_path / "a.jsonl.zst", b"\x28\xb5\x2f\xfd rest")
    table = write(tmp_path / "a.parquet", b"PAR1")
    for source in (JSONLines(path=packed), Parquet(path=table), Hub(name="owner/data")):
        assert "pip install 'anyformer[data]'" in complaint(source)


def test_parquet_and_zstd_are_read(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"body": {"text": f"t{n}"}, "label": n, "other": "x"} for n in range(3000)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    records = list(Parquet(path=str(tmp_path / "a.parquet"), text="body.text", label="label").records())
    assert [(record.text, record.label) for record in records] == [(f"t{n}", str(n)) for n in range(3000)]
    assert "no column 'txt'" in complaint(Parquet(path=str(tmp_path / "a.parquet"), text="txt"))
    assert "not a Parquet file" in complaint(Parquet(path=write(tmp_path / "b.parquet", "PAR1 no")))
    with arrow.output_stream(str(tmp_path / "a.txt.zst"), compression="zstd") as stream:
        stream.write(b"hello\n" * 1000)
    assert texts(Text(path=str(tmp_path / "a.txt.zst"), documents="line")) == ["hello"] * 1000


def test_the_hub_is_streamed_with_its_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(
        name: str, config: str | None, *, revision: str | None, streaming: bool
    ) -> dict[str, list[object]]:
        asked.append((name, config, revision, streaming))
        return {"train": [{"text": "a"}], "validation": [{"text": "b"}], "unsupervised": [{"text": "c"}]}

    fake = ModuleType("datasets")
    vars(fake).update(load_dataset=load_dataset, load_dataset_builder=lambda *_, revision: SimpleNamespace(hash="h"))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    source = Hub(name="owner/data", revision="abc")
    assert [(record.text, record.split) for record in source.records()] == [("a", "train"), ("b", "valid")]
    assert asked == [("owner/data", None, "abc", True)]
    assert texts(source.with_("splits", ["unsupervised"])) == ["c"]
    assert "its splits are train, validation, unsupervised" in complaint(source.with_("splits", ["dev"]))
    assert source.fingerprint().endswith("-h")


def test_wrong_options_are_faults_of_the_config() -> None:
    for source in (Text, JSONLines, CSV, Pairs, Folder):
        with pytest.raises(SpecError, match="encoding: there is none called 'utf-9'"):
            source(path="a.txt", encoding="utf-9")
    with pytest.raises(SpecError, match="delimiter: must be one character"):
        CSV(path="a.csv", delimiter="||")
    with pytest.raises(SpecError, match="header=no"):
        CSV(path="a.csv", header="no", text="body")
    with pytest.raises(SpecError, match="must name files inside the folder"):
        Folder(path="a", pattern="../*")


def test_a_long_cell_is_read_and_the_limit_of_other_readers_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f"text\n{'x' * (limit + 1)}\nshort\n")
    records = CSV(path=str(tmp_path / "a.csv")).records()
    assert len(next(records).text) == limit + 1
    assert csv.field_size_limit() == limit  # while the table is half read, too
    assert next(records).text == "short"
