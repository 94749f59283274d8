"""The defaults that need no download: enough of them, always the same, and spelled right."""

import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from anyformer.core import decode
from anyformer.data.record import SourceSpec
from anyformer.data.sources import docstrings as library
from anyformer.data.sources.docstring_summaries import DocstringSummaries
from anyformer.data.sources.docstrings import Docstrings
from anyformer.data.sources.number_words import NumberWords, spell
from anyformer.data.sources.pronouns import OTHER, Pronouns
from anyformer.data.sources.python_topics import PythonTopics
from anyformer.data.sources.unicode_names import UnicodeNames
from anyformer.errors import DataError, SpecError

EMBEDDED = (PythonTopics(), Docstrings(), DocstringSummaries(), UnicodeNames(), NumberWords(), Pronouns())
LEAST = {"python_topics": 70, "docstrings": 3000, "docstring_summaries": 2000, "unicode_names": 30_000}
each = pytest.mark.parametrize("source", EMBEDDED, ids=lambda source: source.kind)

NUMBERS = """
0        zero                                  null                                    zéro
1        one                                   eins                                    un
3        three                                 drei                                    trois
5        five                                  fünf                                    cinq
11       eleven                                elf                                     onze
12       twelve                                zwölf                                   douze
16       sixteen                               sechzehn                                seize
17       seventeen                             siebzehn                                dix-sept
18       eighteen                              achtzehn                                dix-huit
20       twenty                                zwanzig                                 vingt
21       twenty-one                            einundzwanzig                           vingt et un
22       twenty-two                            zweiundzwanzig                          vingt-deux
30       thirty                                dreißig                                 trente
40       forty                                 vierzig                                 quarante
61       sixty-one                             einundsechzig                           soixante et un
66       sixty-six                             sechsundsechzig                         soixante-six
70       seventy                               siebzig                                 soixante-dix
71       seventy-one                           einundsiebzig                           soixante et onze
72       seventy-two                           zweiundsiebzig                          soixante-douze
77       seventy-seven                         siebenundsiebzig                        soixante-dix-sept
80       eighty                                achtzig                                 quatre-vingts
81       eighty-one                            einundachtzig                           quatre-vingt-un
90       ninety                                neunzig                                 quatre-vingt-dix
91       ninety-one                            einundneunzig                           quatre-vingt-onze
99       ninety-nine                           neunundneunzig                          quatre-vingt-dix-neuf
100      one hundred                           einhundert                              cent
101      one hundred and one                   einhunderteins                          cent un
121      one hundred and twenty-one            einhunderteinundzwanzig                 cent vingt et un
180      one hundred and eighty                einhundertachtzig                       cent quatre-vingts
200      two hundred                           zweihundert                             deux cents
201      two hundred and one                   zweihunderteins                         deux cent un
321      three hundred and twenty-one          dreihunderteinundzwanzig                trois cent vingt et un
600      six hundred                           sechshundert                            six cents
1000     one thousand                          eintausend                              mille
1001     one thousand and one                  eintausendeins                          mille un
1100     one thousand one hundred              eintausendeinhundert                    mille cent
1971     one thousand nine hundred and seventy-one  eintausendneunhunderteinundsiebzig  mille neuf cent soixante et onze
2000     two thousand                          zweitausend                             deux mille
2080     two thousand and eighty               zweitausendachtzig                      deux mille quatre-vingts
2200     two thousand two hundred              zweitausendzweihundert                  deux mille deux cents
21000    twenty-one thousand                   einundzwanzigtausend                    vingt et un mille
71017    seventy-one thousand and seventeen    einundsiebzigtausendsiebzehn            soixante et onze mille dix-sept
80000    eighty thousand                       achtzigtausend                          quatre-vingt mille
101000   one hundred and one thousand          einhunderteintausend                    cent un mille
200000   two hundred thousand                  zweihunderttausend                      deux cent mille
200200   two hundred thousand two hundred      zweihunderttausendzweihundert           deux cent mille deux cents
"""


@each
def test_a_default_is_the_same_every_time_and_has_no_repetition(source: SourceSpec) -> None:
    records = list(source.records())
    assert records == list(source.records())
    assert len(records) >= LEAST.get(source.kind, 3000)
    assert len({record.text for record in records}) == len(records)
    assert all(record.text.strip() and record.where for record in records)


@each
def test_a_default_is_found_by_its_kind_and_has_a_stable_fingerprint(source: SourceSpec) -> None:
    assert decode(SourceSpec, {"kind": source.kind}) == source
    assert source.fingerprint() == type(source)().fingerprint()


def test_fingerprints_tell_sources_and_their_options_apart() -> None:
    others = (DocstringSummaries(shortest=9), NumberWords(seed=1), NumberWords(target="french"))
    assert len({source.fingerprint() for source in (*EMBEDDED, *others)}) == len(EMBEDDED) + len(others)


def test_a_topic_is_in_the_group_of_the_chapter_that_repeats_it() -> None:
    groups = {record.where.split("'")[-2]: record.group for record in PythonTopics().records()}
    assert groups["try"] == groups["with"] == groups["compound"] == "compound"
    assert groups["numeric-types"] == groups["specialnames"] == "specialnames"
    assert len(set(groups.values())) >= 40


def test_docstrings_are_grouped_by_module_and_say_where_they_stand() -> None:
    records = {record.where.partition(":")[0]: record for record in Docstrings().records()}
    assert records["json/decoder.py"].group == "json"
    assert not {record.group for record in records.values()} - sys.stdlib_module_names
    assert not any("test" in place.split("/")[:-1] or "tests" in place.split("/") for place in records)


def test_docstrings_stand_where_they_say() -> None:
    root = library._root()
    for record in list(Docstrings().records())[::500]:
        place, line = record.where.split(":")
        shown = (root / place).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
        assert record.text.splitlines()[0].strip()[:20] in "\n".join(shown[:2]).replace("\\\\", "\\")


def test_files_are_read_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "harmful.py"
    file.write_text(
        '"""One."""\nif raise_ := exit():\n    def f():\n        "Two."\n\nclass A:\n    """\n    Three.\n    """\n'
    )
    assert list(library._inside(library._parsed(file))) == [(1, "One."), (4, "Two."), (7, "Three.")]
    file.write_text("not Python")
    assert list(library._inside(library._parsed(file))) == []


def test_docstrings_come_in_the_order_of_file_and_line() -> None:
    lines: dict[str, list[int]] = {}
    for record in Docstrings().records():
        place, line = record.where.split(":")
        lines.setdefault(place, []).append(int(line))
    assert all(numbers == sorted(numbers) for numbers in lines.values())
    assert list(lines) == sorted(lines, key=lambda place: place.split("/"))


def test_a_python_without_sources_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_root", lambda: tmp_path)
    with pytest.raises(DataError, match="without its sources"):
        Docstrings().fingerprint()


def test_a_python_without_topics_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="without its help topics"):
        list(PythonTopics().records())


def test_summary_and_body_give_the_docstring_back() -> None:
    whole = {record.where: record.text for record in Docstrings().records()}
    for record in DocstringSummaries().records():
        assert record.target is not None and "\n" not in record.target and len(record.text.split()) >= 5
        assert whole[record.where].split() == f"{record.target}\n\n{record.text}".split()


def test_names_are_those_of_the_standard_and_none_is_made_by_a_rule() -> None:
    records = list(UnicodeNames().records())
    for record in records[::50]:
        character = unicodedata.lookup(record.text)
        assert record.where == f"U+{ord(character):04X}" and record.label == unicodedata.category(character)
    assert not any(record.text.startswith(("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT IDEO")) for record in records)
    assert {"LATIN", "GREEK", "ARABIC"} < {record.group for record in records}
    assert len({record.label for record in records}) >= 25


@pytest.mark.parametrize("line", NUMBERS.strip().splitlines(), ids=lambda line: line.split()[0])
def test_numbers_are_spelled_right(line: str) -> None:
    number, *words = [column.strip() for column in line.split("  ") if column.strip()]
    assert [spell(int(number), language) for language in ("english", "german", "french")] == words


@pytest.mark.parametrize("language", ["english", "german", "french"])
def test_no_two_numbers_are_spelled_alike(language: str) -> None:
    assert len({spell(number, language) for number in range(10_000)}) == 10_000  # type: ignore[arg-type]


@pytest.mark.row("WMT-09", clause="generates a parallel corpus offline, or has a bundled one")
def test_number_pairs_are_drawn_once_each_and_belong_together() -> None:
    records = list(NumberWords(source="french", target="german", below=1000, count=1000).records())
    back = {spell(number, "french"): spell(number, "german") for number in range(1000)}
    assert {record.text: record.target for record in records} == back
    assert records[:10] != list(NumberWords(source="french", target="german", below=1000, count=10, seed=1).records())


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(SpecError, match="only 10 numbers below 10"):
        NumberWords(below=10, count=11)
    with pytest.raises(SpecError, match="both 'german'"):
        NumberWords(source="german")


def test_only_the_last_word_tells_what_it_is() -> None:
    meanings: dict[str, Counter[str]] = {}
    for record in Pronouns().records():
        words = record.text.split()
        assert len(record.tags) == len(words) and record.label in words[: words.index("it")]
        assert {word: tag for word, tag in zip(words, record.tags, strict=True) if tag != OTHER} == {"it": record.label}
        meanings.setdefault(record.text.rpartition(" ")[0], Counter())[record.label or ""] += 1
    assert all(len(set(counts.values())) == 1 and len(counts) == 2 for counts in meanings.values())


@pytest.mark.row("VIZ-07", clause="coreference demo: two sentences alike but for 'tired' or 'wide'")
def test_the_sentence_of_the_lectures_is_there_with_both_readings() -> None:
    start = "The animal did not cross the street because it was too "
    found = {record.text.removeprefix(start): record for record in Pronouns().records()}
    assert (found["tired"].label, found["wide"].label) == ("animal", "street")
    assert found["tired"].group == found["wide"].group
