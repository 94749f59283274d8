"""The corpus from Debian packages: text of every format, no near-duplicates, splits by package."""

import bz2
import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from tools.corpus.build import Source, tree_records, write_corpora
from tools.corpus.documents import code_documents, is_prose, pieces, prose_documents
from tools.corpus.extract import sources_of, texts_of
from tools.corpus.near_duplicates import DuplicateFilter, SeenShingles, sketch
from tools.corpus.packages import CorpusError, Package, Table, download, licence_of, read_table, version_of
from tools.corpus.report import Count, Row, report
from tools.corpus.splits import Splits
from tools.corpus.writing import compressed, line, records

SENTENCE = "The cat sat on the mat and it was happy to be there with a friend of the house. "
PAGE = """<html><head><title>Skip</title></head><body><script>var x;</script><nav>Home Next</nav>
<h1>A   title</h1><p>One &amp; two
lines<br>third</p><pre>  kept
   as is</pre><table><tr><td>a</td><td>b</td></tr></table></body></html>"""
MANUAL = r""".\" a comment
.TH CAT 1
.de XX
hidden
..
.SH NAME
cat \- join \fBfiles\fP
.PP
It prints
.BR cat (1)
output.
.nf
  cat  x
.fi
"""
INFO = "head\n\x1f\nFile: a.info,  Node: Top,  Up: (dir)\n\nReal text.\n\n* Menu:\n\n* One:: first\n\x1f\nTag Table:\n"
FILES = {
    "a.txt": (b"plain text", "plain text"),
    "b.rst.gz": (gzip.compress(b"Title\n====="), "Title\n====="),
    "c.md.bz2": (bz2.compress(b"# Title"), "# Title"),
    "d.txt": ("naïve".encode("latin-1"), "naïve"),
    "e.html": (PAGE.encode(), "A title\n\nOne & two lines\nthird\n\n  kept\n   as is\n\na b"),
    "f.html.en": (b"<body><p>English</p></body>", "English"),
    "g.docbook": (b"<?xml?><book><title>T</title><para>Some\ntext</para></book>", "T\n\nSome text"),
    "man/man1/cat.1.gz": (
        gzip.compress(MANUAL.encode()),
        "NAME\n\ncat - join files\n\nIt prints cat(1) output.\n\n  cat  x",
    ),
    "h.info": (INFO.encode(), "Real text."),
    "i.dict.dz": (gzip.compress(b"word\n   its meaning"), "word\n   its meaning"),
    "j.pod": (b"=head1 NAME\n\nB<C<x>> is I<good>\n\n=cut\n", "NAME\n\nx is good"),
    "games/fortunes/art": (b"A quip.\n%\nMore.", "A quip.\n%\nMore."),
}


def write(tree: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    return tree


def random_text(seed: int, words: int = 400) -> str:
    """Random words of a small vocabulary, with the common words that make a text English."""
    generator = np.random.default_rng(seed)
    vocabulary = np.array(["the", "of", "and", "to", "in", *(f"w{chr(97 + i)}" for i in range(26))])
    return " ".join(generator.choice(vocabulary, words))


@pytest.mark.parametrize("name", FILES)
def test_each_format_gives_its_text(tmp_path: Path, name: str) -> None:
    content, expected = FILES[name]
    (text,) = texts_of(write(tmp_path, {f"usr/share/{name}": content}))
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    assert [line for line in lines if line] == [line for line in expected.split("\n") if line]


def test_a_sword_module_gives_the_text_of_its_blocks(tmp_path: Path) -> None:
    blocks = [zlib.compress(b"<verse>In the beginning</verse> "), zlib.compress(b"God created")]
    offsets = [0, len(blocks[0])]
    index = b"".join(struct.pack("<3I", offset, len(block), 99) for offset, block in zip(offsets, blocks, strict=True))
    tree = write(tmp_path, {"ot.bzs": index, "ot.bzz": b"".join(blocks)})
    assert list(texts_of(tree)) == ["In the beginning God created"]


def test_a_damaged_file_gives_no_text(tmp_path: Path) -> None:
    tree = write(tmp_path, {"a.txt.gz": gzip.compress(b"text")[:-5], "b.txt.xz": b"no archive", "c.txt": b"text"})
    assert list(filter(None, texts_of(tree))) == ["text"]


@pytest.mark.parametrize(
    "name", ["de/a.html", "a.fr.html", "a.html.ja.utf8", "zh_CN/a.txt", "changelog.gz", "genindex.html", "a.png"]
)
def test_other_languages_indexes_and_change_logs_are_not_read(tmp_path: Path, name: str) -> None:
    assert list(texts_of(write(tmp_path, {f"usr/share/doc/x/{name}": b"text"}))) == []


def test_the_sources_of_sphinx_replace_its_pages_and_copies_of_a_file_count_once(tmp_path: Path) -> None:
    files = {"x/_sources/a.rst.txt": b"source", "x/a.html": b"page", "y/a.txt": b"source", "y/b.html": b"other"}
    assert list(texts_of(write(tmp_path, files))) == ["source", "other"]


def test_lines_that_many_pages_share_are_removed_but_code_is_not() -> None:
    texts = [f"Home page\nNAME\n}}\nPage {chr(97 + i) * 5}. {SENTENCE * 3}" for i in range(12)]
    records = list(prose_documents([*texts, texts[0]]))
    assert len(records) == 12
    assert records[0].startswith("NAME\n}\nPage aaaaa.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTENCE * 3, True),
        ("too short", False),
        ("Die Katze liegt im Haus, und alle freuen sich sehr. " * 8, False),
        ("0017 0028 0039 1234 5678 the of and " * 20, False),
        ("alpha beta gamma delta " * 20, False),
    ],
)
def test_prose_is_told_by_common_words_and_letters(text: str, expected: bool) -> None:
    assert is_prose(text) is expected


def test_long_documents_are_cut_after_a_paragraph() -> None:
    paragraphs = [f"{i} " + "word " * 20 for i in range(50)]
    parts = list(pieces("\n\n".join(paragraphs), longest=1000))
    assert max(map(len, parts)) <= 1000
    assert "\n\n".join(parts) == "\n\n".join(paragraphs)
    assert list(pieces("x" * 2500, longest=1000)) == ["x" * 1000, "x" * 1000, "x" * 500]


def test_code_is_read_from_the_archive_without_lists_of_registers(tmp_path: Path) -> None:
    body = "int main(void)\n{\n\treturn 0;\n}\n" * 10
    members = {
        "linux/fs/ext4/a.c": body,
        "linux/fs/r.h": "#define A 1\n" * 50,
        "linux/arch/arm/b.c": body,
        "linux/c.txt": "",
    }
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    assert list(code_documents(sources_of(tmp_path))) == [("fs/ext4", body.strip("\n"))]


def test_copies_with_small_changes_and_parts_of_a_text_are_found() -> None:
    text = random_text(0)
    words = text.split()
    words[200:203] = ["some", "other", "words"]
    duplicates = DuplicateFilter(bits=20)
    assert duplicates.keep(text, "train")
    for copy in (text, text.upper() + "!", " ".join(words), " ".join(words[:150])):
        assert not duplicates.keep(copy, "train")


def test_distinct_random_texts_are_kept() -> None:
    duplicates = DuplicateFilter(bits=24)
    kept = [duplicates.keep(random_text(seed), "train") for seed in range(1000)]
    assert sum(kept) == 1000  # no false positive


def test_the_table_of_seen_shingles_rarely_takes_a_new_one_for_an_old_one() -> None:
    seen = SeenShingles(bits=20)
    old, new = (sketch(" ".join(map(str, range(start, start + 40_000)))) for start in (0, 10**6))
    seen.add(old)
    assert seen.containment(old) == 1
    assert seen.containment(new) < 2 * len(old) / 2**20


def test_a_sketch_samples_a_quarter_of_the_shingles_and_is_never_empty() -> None:
    assert 9_500 < len(sketch(" ".join(map(str, range(40_000))))) < 10_500
    assert len(sketch("two words")) == len(sketch("")) == 1
    assert sketch("two words") != sketch("other words")


def test_little_overlap_with_held_out_text_drops_a_training_document() -> None:
    held_out, rest = random_text(1), random_text(2)
    mixed = " ".join([*held_out.split()[:140], *rest.split()])
    for first, kept in (("train", True), ("test", False)):
        duplicates = DuplicateFilter(bits=20)
        assert duplicates.keep(held_out, first)
        assert duplicates.keep(mixed, "train") is kept


def test_a_group_has_one_split_and_names_of_the_table_come_first() -> None:
    splits = [Splits({}).of(f"package-{i}") for i in range(3000)]
    assert splits == [Splits({}).of(f"package-{i}") for i in range(3000)]
    assert 10 < splits.count("valid") < 60 and 10 < splits.count("test") < 60
    named = Splits({"a": "test", "b": "train", "c": "train"}, left_out={"c"})
    assert named.of("a") == "test"
    assert [group for group in "abc" if named.wanted(group, held_out=False)] == ["b"]


def sources(folder: Path, texts: dict[str, list[str]]) -> list[Source]:
    """Packages whose texts are already extracted."""
    result = []
    for name, documents in texts.items():
        with compressed(folder / f"{name}.jsonl.gz") as out:
            out.writelines(line({"group": name, "text": text}) for text in documents)
        result.append(Source(Package(name, "prose", "", ""), "1", "MIT", folder / f"{name}.jsonl.gz"))
    return result


def test_the_held_out_copy_is_kept_and_the_training_copy_dropped(tmp_path: Path) -> None:
    shared = random_text(0)
    packages = sources(tmp_path, {"a": [shared, random_text(1)], "b": [shared, random_text(2)]})
    write_corpora(packages, Table((), {"a": "train", "b": "test"}), tmp_path)
    kept = list(records(tmp_path / "prose.jsonl.gz", lambda _: True))
    kept_in = {record["text"]: record["group"] for record in kept}
    assert [kept_in[random_text(seed)] for seed in range(3)] == ["b", "a", "b"]
    assert packages[0].counts["train"] == Count(2, len(shared + random_text(1)), 1, len(random_text(1)))


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    outputs = []
    for name in ("one", "two"):
        packages = sources(tmp_path / name, {"a": [random_text(1)], "b": [random_text(2)]})
        write_corpora(packages, Table((), {"a": "train", "b": "valid"}), tmp_path / name)
        outputs.append([(tmp_path / name / f"{corpus}.jsonl.gz").read_bytes() for corpus in ("prose", "code")])
    assert outputs[0] == outputs[1]


def test_records_of_a_tree_name_their_package(tmp_path: Path) -> None:
    tree = write(tmp_path, {"usr/share/doc/x/a.txt": (SENTENCE * 5).encode()})
    (record,) = tree_records(tree, Package("x-doc", "prose", "", ""))
    assert record == {"group": "x-doc", "text": (SENTENCE * 5).strip()}


def test_the_licence_is_read_from_a_machine_readable_copyright_file(tmp_path: Path) -> None:
    text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-2+\n\n"
    text += "Files: b\nCopyright: me\nLicense: MIT\n text\n\nLicense: GPL-2+\n the text"
    assert licence_of(tmp_path, "x") == ""
    assert licence_of(write(tmp_path, {"usr/share/doc/x/copyright": text.encode()}), "x") == "GPL-2+, MIT"
    assert version_of(Path("dict-wn_1%3a3.0-37_all.deb")) == "1:3.0-37"


def test_a_package_that_apt_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("tools.corpus.packages.available", lambda names: set())
    write(tmp_path, {"there_1_all.deb": b""})
    download(["there"], tmp_path)
    with pytest.raises(CorpusError, match="apt does not have absent"):
        download(["there", "absent"], tmp_path)


def test_the_table_holds_out_packages_that_it_has() -> None:
    table = read_table()
    names = {package.name for package in table.packages}
    assert {group.partition("/")[0] for group in table.held_out} <= names
    assert {"valid", "test"} == set(table.held_out.values())
    assert all(package.about and package.licence for package in table.packages)


def test_the_page_adds_up_characters_and_tokens() -> None:
    rows = [
        Row("prose", "a", "1", "MIT", "train", Count(2, 8400, 1, 4200)),
        Row("code", "b", "2", "GPL", "test", Count()),
    ]
    page = report(rows, ["absent"], "command")
    assert "| both | all | 2 | 8,400 | 1 | 4,200 | 100.0 % | 1,000 |" in page
    assert "| a | 1 | prose | train | MIT | 2 | 8,400 | 1 | 4,200 |" in page
    assert "left out: absent." in page
