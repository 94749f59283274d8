"""CORPUS.md: where the text comes from, under which licences, and how much of it is left without duplicates."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

CHARACTERS_PER_TOKEN = 4.2
"""Usual for English prose and a vocabulary of some ten thousand tokens; code has fewer characters per token."""
SPLITS = ("train", "valid", "test")


@dataclass
class Count:
    """Documents and characters, before and after duplicates are removed."""

    documents: int = 0
    characters: int = 0
    kept_documents: int = 0
    kept_characters: int = 0

    def add(self, characters: int, kept: bool) -> None:
        self.documents += 1
        self.characters += characters
        self.kept_documents += kept
        self.kept_characters += characters * kept


@dataclass(frozen=True)
class Row:
    """The documents of one package in one split."""

    corpus: str
    package: str
    version: str
    licence: str
    split: str
    count: Count


def total(rows: Sequence[Row]) -> Count:
    counts = [row.count for row in rows]
    return Count(
        sum(count.documents for count in counts),
        sum(count.characters for count in counts),
        sum(count.kept_documents for count in counts),
        sum(count.kept_characters for count in counts),
    )


def cells(*values: object) -> str:
    return "| " + " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values) + " |"


def totals(rows: Sequence[Row]) -> list[str]:
    """One line per corpus and split, one per corpus, and one for everything."""
    lines = [
        "| corpus | split | documents | characters | kept documents | kept characters | share | unique tokens |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for corpus in [*dict.fromkeys(row.corpus for row in rows), None]:
        chosen = [row for row in rows if corpus in (row.corpus, None)]
        whole = total(chosen).kept_characters
        for split in [*SPLITS, None] if corpus else [None]:
            count = total([row for row in chosen if split in (row.split, None)])
            tokens = round(count.kept_characters / CHARACTERS_PER_TOKEN)
            numbers = count.documents, count.characters, count.kept_documents, count.kept_characters
            share = f"{100 * count.kept_characters / max(whole, 1):.1f} %"
            lines.append(cells(corpus or "both", split or "all", *numbers, share, tokens))
    return lines


def report(rows: Sequence[Row], missing: Sequence[str], command: str) -> str:
    """The page as Markdown."""
    today = datetime.datetime.now(datetime.UTC).date()
    table = [
        cells(
            row.package, row.version, row.corpus, row.split, row.licence.replace("|", "or"), row.count.documents,
            row.count.characters, row.count.kept_documents, row.count.kept_characters,
        )
        for row in rows
    ]  # fmt: skip
    return "\n".join(
        [
            "# Corpus",
            "",
            f"Built by `{command}` on {today}.",
            "",
            f"Tokens are estimated at {CHARACTERS_PER_TOKEN} characters each. A text keeps the licence of its package.",
            "",
            *totals(rows),
            "",
            *([f"Not available on this system, left out: {', '.join(missing)}.", ""] if missing else []),
            "| package | version | corpus | split | licence | documents | characters | kept | kept characters |",
            "|---|---|---|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )
