"""A diagnosis of data: counts, splits, lengths, samples and warnings, before anything is trained.

Records are read twice, as in preparation: once to determine the splits, once for the checks. Expensive checks run on a
sample that is spread over all records. Memory is bounded.
"""

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from anyformer.core import kind_of
from anyformer.data.chat.template import encode_conversation
from anyformer.data.checks.check import Check, Facts, Finding, Item
from anyformer.data.preparation.contents import HELD_OUT, MOST_CLASSES, SPLITS, Contents, Splitter, SpreadSample
from anyformer.data.preparation.pipeline import DataSpec, encoder_of, look
from anyformer.data.record import Record
from anyformer.data.tokenizers.tokenizer import Tokenizer

RECORDS, CHARACTERS = 20_000, 4_000_000
"""The sample: at most so many records, and about so much text."""
SHOWN = 2
TOGETHER = 256


@dataclass(frozen=True)
class Diagnosis:
    """A summary of the data, and what is wrong with them."""

    spec: DataSpec
    contents: Contents
    vocabulary: int
    splits: dict[str, int]
    split_by_source: bool
    """Whether the source names the held-out records, or some of them."""
    cut_off: dict[str, float]
    """Split -> share, for splits that the source does not name."""
    unit: str
    """Unit of these shares: records, groups, or text, if pieces of it are held out."""
    labels: dict[str, int]
    """Class -> number of records, the most frequent first."""
    overlap: int
    """Training records that are copies of held-out ones; training leaves them out."""
    characters: int
    tokens: int
    sampled: int
    """Number of records whose tokens were counted; if it is not all of them, `tokens` is an estimate."""
    lengths: dict[str, list[int]]
    """Side -> tokens of each sampled record."""
    samples: list[dict[str, str]]
    findings: list[Finding]

    @property
    def records(self) -> int:
        return sum(self.splits.values())


def diagnose(spec: DataSpec) -> Diagnosis:
    """Diagnoses all records; DataError if they cannot be read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        view = look(spec)
    view.refuse_constant_label()
    skipped = [Finding("skipped", str(warning.message)) for warning in caught]
    skipped += [Finding("source", text) for text in spec.source.warnings()]
    tokenizer = spec.tokenizer.train(view.sample)
    encoder = encoder_of(spec, view.contents, tokenizer)
    longest = encoder.longest if encoder.truncates else None
    facts = Facts(view.contents, tokenizer.words.unk, spec.context, longest)
    Check.load_kinds()
    checks = [kind_of(Check, kind) for kind in Check.kinds if kind not in spec.source.expected]
    quick, slow = ([check().start(facts) for check in checks if check.sampled is costly] for costly in (False, True))
    tally = _Tally(view.splitter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown after the first pass
        for record, split, _ in view.with_joins():
            item = Item(record, split)
            tally.see(item)
            for watch in quick:
                watch.see(item)
    tally.close()
    items = [_encoded(item, tokenizer) for item in tally.sample]
    for item in items:
        for watch in slow:
            watch.see(item)
    counted = sum(len(each.tokens) + len(each.target) for each in items)
    sizes = sum(each.record.characters() for each in items)
    note = "" if len(items) == tally.splits.total() else " (In a sample.)"
    sides = ("text", "target") if view.contents.pair else ("text",)
    text = view.lone is not None or tally.pieces
    cut_off = {name: {"valid": spec.valid, "test": spec.test}[name] for name, _ in view.splitter.shares}
    return Diagnosis(
        spec=spec,
        contents=view.contents,
        vocabulary=tokenizer.words.size,
        splits={split: tally.splits[split] for split in SPLITS if tally.splits[split]},
        split_by_source=tally.split_by_source and spec.split in ("auto", "given") and view.lone is None,
        cut_off={name: tally.sizes[name] / tally.characters for name in cut_off} if text else cut_off,
        unit="text" if text else "groups" if tally.grouped else "records",
        labels=dict(tally.labels.most_common()) if view.contents.classes else {},
        overlap=tally.overlap,
        characters=tally.characters,
        tokens=round(counted * tally.characters / sizes) if sizes else 0,
        sampled=len(items),
        lengths={side: [len(item.tokens if side == "text" else item.target) for item in items] for side in sides},
        samples=[_sample(item, tokenizer) for item in items[:SHOWN]],
        findings=[
            *skipped,
            *(finding for watch in quick for finding in watch.findings()),
            *(replace(finding, text=finding.text + note) for watch in slow for finding in watch.findings()),
        ],
    )


class _Tally:
    """Counts records, and collects a sample that is spread over all of them."""

    def __init__(self, splitter: Splitter):
        self._splitter, self._train = splitter, list[Record]()
        self.sample = SpreadSample[Item](lambda item: item.record.characters(), CHARACTERS, RECORDS, SHOWN)
        self.splits: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()  # characters by split
        self.overlap = 0
        self.split_by_source = self.grouped = self.pieces = False
        self.labels: Counter[str] = Counter()

    def see(self, item: Item) -> None:
        self.sample.see(item)
        self.sizes[item.split] += item.record.characters()
        self.splits[item.split] += 1
        if item.split == "train" and len(self._splitter.held_out):
            self._train.append(item.record)
            if len(self._train) == TOGETHER:
                self.close()
        self.split_by_source |= item.record.split in HELD_OUT
        self.grouped |= item.record.group is not None
        self.pieces |= item.record.continues and item.record.group is None
        if item.record.label is not None and (item.record.label in self.labels or len(self.labels) < MOST_CLASSES):
            self.labels[item.record.label] += 1

    @property
    def characters(self) -> int:
        return self.sizes.total()

    def close(self) -> None:
        """Counts the copies among the training records that wait."""
        self.overlap += sum(self._splitter.leaks(self._train))
        self._train.clear()


def _encoded(item: Item, tokenizer: Tokenizer) -> Item:
    record = item.record
    if record.pieces:
        return Item(record, item.split, encode_conversation(tokenizer, record.pieces)[0])
    tokens, target = tokenizer.encode_batch([record.text, record.target or "".join(record.choices)])
    return Item(record, item.split, tokens, target)


def _sample(item: Item, tokenizer: Tokenizer) -> dict[str, str]:
    """The texts of a record as the model reads them: encoded and decoded."""
    record = item.record
    marks: Literal["show", "skip"] = "show" if record.pieces else "skip"  # special tokens end the turns of a chat
    shown = {"where": record.where, "text": tokenizer.decode(item.tokens, special=marks)}
    if record.target is not None:
        shown["target"] = tokenizer.decode(item.target)
    rest = {"label": record.label, "tags": " ".join(record.tags), "choices": " | ".join(record.choices)}
    return shown | {name: value for name, value in rest.items() if value}
