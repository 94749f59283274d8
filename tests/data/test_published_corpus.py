"""The corpora that the lectures name: their sizes, local copies of them, and generated text without a copy."""

import gzip
import json
from pathlib import Path
from typing import get_args

import pytest

from anyformer.cli.main import main
from anyformer.core import decode
from anyformer.core.spec import hints_of
from anyformer.data.record import SourceSpec
from anyformer.data.sources.published_corpus import CORPORA, PublishedCorpus

ROW = "TSK-09"


def texts(source: SourceSpec) -> list[str]:
    return [record.text for record in source.records()]


@pytest.mark.row(ROW, clause="registry: BooksCorpus, Wikipedia, WebText, C4 and CommonCrawl")
@pytest.mark.parametrize("name", ["bookscorpus", "wikipedia", "webtext", "c4", "commoncrawl"])
def test_a_corpus_is_a_source_by_its_name(name: str) -> None:
    source = decode(SourceSpec, {"kind": "published_corpus", "name": name, "count": 2})
    assert len(texts(source)) == 2


@pytest.mark.row(ROW, clause="every registry entry carries its size metadata")
def test_every_corpus_states_its_size_and_the_paper_that_has_it() -> None:
    assert set(get_args(hints_of(PublishedCorpus)["name"])) == set(CORPORA)
    for size in CORPORA.values():
        assert size.words or size.gigabytes
        assert size.paper


@pytest.mark.row(ROW, clause="size of BooksCorpus: 800M words, 7000 books")
def test_the_size_of_the_books() -> None:
    books = CORPORA["bookscorpus"]
    assert (books.words, books.documents, books.unit) == (800_000_000, 7_000, "books")


@pytest.mark.row(ROW, clause="size of Wikipedia: 2,500M words")
def test_the_books_and_wikipedia_have_the_words_that_bert_read() -> None:
    assert CORPORA["wikipedia"].words == 2_500_000_000
    assert sum(CORPORA[name].words or 0 for name in ("bookscorpus", "wikipedia")) == 3_300_000_000


@pytest.mark.row(ROW, clause="size of WebText: 40GB")
def test_the_size_of_webtext_is_said_where_its_text_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert CORPORA["webtext"].gigabytes == 40
    assert main(["data", "published_corpus", "source.name=webtext", "source.count=60"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "60 generated documents in place of webtext" in printed
    assert "40 GB" in printed


@pytest.mark.row(ROW, clause="local text files are loaded in place of a corpus")
def test_a_copy_is_read_as_text_as_json_lines_or_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki/a.txt").write_text("Anarchism is a philosophy.")
    (tmp_path / "wiki/b.txt").write_text("Autism is a condition.")
    lines = "".join(json.dumps({"url": f"https://example.org/{n}", "text": f"page {n}"}) + "\n" for n in range(3))
    (tmp_path / "c4.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    folder = PublishedCorpus(name="wikipedia", path=str(tmp_path / "wiki"))
    assert texts(folder) == ["Anarchism is a philosophy.", "Autism is a condition."]
    assert texts(PublishedCorpus(name="c4", path=str(tmp_path / "c4.jsonl.gz"))) == ["page 0", "page 1", "page 2"]
    assert not [text for text in folder.warnings() if "generated" in text]


def test_a_changed_copy_has_another_fingerprint(tmp_path: Path) -> None:
    copy = tmp_path / "books.txt"
    copy.write_text("It was a dark and stormy night.")
    source = PublishedCorpus(name="bookscorpus", path=str(copy))
    before = source.fingerprint()
    copy.write_text("It was a bright cold day in April.")
    assert source.fingerprint() != before
    assert list(source.files().values()) == [copy]


@pytest.mark.row(ROW, clause="without a file a synthetic corpus is used")
def test_without_a_copy_documents_are_generated_the_same_every_time_and_a_warning_says_so() -> None:
    source = PublishedCorpus(name="commoncrawl", count=50)
    documents = texts(source)
    assert len(set(documents)) == 50
    assert documents == texts(source)
    assert all(document.count(".") == 8 for document in documents)
    assert documents != texts(PublishedCorpus(name="c4", count=50))
    (warning,) = source.warnings()
    assert "generated" in warning and "570 GB" in warning
