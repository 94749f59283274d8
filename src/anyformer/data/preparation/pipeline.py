"""From records to shards: read, check, split, train the tokenizer, encode, write.

The source is read twice: once to collect splits, labels and a sample for the tokenizer, once to encode it. Small data
stay in memory in between and are read once; large files may be larger than memory. A cache of prepared data is shared
by all runs with the same data section.
"""

import atexit
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock

from anyformer.core import Chance, Count, Range, Spec, decode
from anyformer.core.readable_numbers import counted
from anyformer.data.batching.packings.auto import AutoPacking
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.checks.check import Facts, Item, Watch
from anyformer.data.checks.overlap import Overlap, OverlapSearch
from anyformer.data.checks.unseen_labels import UnseenLabels
from anyformer.data.preparation.contents import (
    HELD_OUT,
    SPLITS,
    Contents,
    ContentsCollector,
    SplitBy,
    Splitter,
    SpreadSample,
    Survey,
    halves,
    utf8_bytes,
)
from anyformer.data.preparation.encoding import RecordChunk, RecordEncoder, encode_all
from anyformer.data.preparation.shards import MANIFEST, TOKENIZER, Manifest, Prepared, ShardWriter, in_place_of
from anyformer.data.record import Record, SourceSpec
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from anyformer.disk import identity, settled, sha256, store
from anyformer.errors import DataError, ResourceError, SpecError

FORMAT = 7
"""Format of the prepared folder; folders of an older format are prepared again."""
CHUNK = 1 << 18
"""Characters that a process encodes at a time."""
MOST_WORKERS = 8
KEPT = 1 << 24
"""Characters of records that are kept in memory between the two passes at most."""
CACHE = Path("~/.cache/anyformer/data")
RECORD_OVERHEAD = 200
"""Bytes of a record besides its characters, about."""


@dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    """Which data are read, how they are tokenised, and how tokens are laid out in batches."""

    source: SourceSpec
    """Where records come from."""
    tokenizer: TokenizerSpec
    """How text becomes tokens; trained on the training split alone."""
    split: SplitBy = "auto"
    """auto: as the source names it, else by fraction. given: the source must name it. group, fraction: the source is
    ignored."""
    valid: Chance = 0.05
    """Share of the records (or of the groups) for validation, if the source names none."""
    test: Chance = 0.0
    """Share for the final test, if the source names none."""
    seed: Annotated[int, Range(low=0)] = 0
    """Seed of the split. Not the seed of training: runs that are compared share their splits."""
    context: Count = 512
    """Longest sequence that the model reads. Packed documents go on in the next one; all else loses its end, and leaves
    two places for the special tokens around it."""
    packing: PackingSpec = AutoPacking()
    """How texts are laid out in batches; a string names the kind. pack: documents share rows and each sees itself
    alone, and so do pairs, for an encoder_decoder that learns seq2seq; rows: documents end to end, cut every context
    tokens, which see all before them in their row (fastest, but a row may begin inside a text); stream: rows go on in
    the next batch; bucket: texts of similar length share batches; auto: pack plain documents, bucket the rest."""
    sample_bytes: Count = 10_000_000
    """Largest amount of text, drawn from all of the training split, that the tokenizer is trained on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packing", decode(PackingSpec, self.packing))  # a string is short for its kind
        super().__post_init__()

    def check(self) -> None:
        if self.valid + self.test >= 1:
            raise SpecError(f"valid={self.valid:g} and test={self.test:g} leave nothing to train on.")

    def fingerprint(self, source: str | None = None) -> str:
        """A hash that changes when the prepared data would: with the spec, the data or the format, but not with the
        path of a file. `source`: the fingerprint of the source, if it is known."""
        rest = {key: value for key, value in self.to_dict().items() if key not in ("source", "tokenizer")}
        parts = [FORMAT, rest, source or self.source.fingerprint(), self.tokenizer.fingerprint()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def prepare(
    spec: DataSpec,
    folder: str | Path,
    workers: int | None = None,
    rebuild: bool = False,
    fingerprint: str | None = None,
) -> Prepared:
    """The data as shards in `folder`; opened if they are there already. `workers` processes encode text. `fingerprint`:
    that of the spec, if it is known."""
    folder, fingerprint = Path(folder), fingerprint or spec.fingerprint()
    if (folder / MANIFEST).exists() and not rebuild:
        return _reuse(folder, fingerprint)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise DataError(f"{folder}: exists and holds something else. Name another folder for the prepared data.")
    try:
        with in_place_of(folder) as fresh:
            _write(spec, fresh, fingerprint, min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"{folder}: the disk is full. Free some space and try again.") from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DataError(f"{error.filename or folder}: {error.strerror}.") from None
        raise
    return Prepared.open(folder)


def _reuse(folder: Path, fingerprint: str) -> Prepared:
    manifest = Manifest.read(folder)
    if manifest.format > FORMAT:
        raise DataError(
            f"{folder}: made by a newer anyformer: format {manifest.format}, this one reads {FORMAT}. Upgrade."
        )
    if manifest.fingerprint != fingerprint:
        raise DataError(
            f"{folder}: prepared from other data or another spec: fingerprint {manifest.fingerprint[:16]}, "
            f"now {fingerprint[:16]}. Pass rebuild=True to replace it, or name another folder."
        )
    return Prepared.open(folder)


def _write(spec: DataSpec, folder: Path, fingerprint: str, workers: int) -> None:
    view = look(spec)
    view.refuse_constant_label()
    tokenizer = spec.tokenizer.train(view.sample)
    tokenizer.save(folder / TOKENIZER)
    encoder = encoder_of(spec, view.contents, tokenizer)
    dropped, overlap, labels = list[int](), OverlapSearch(Overlap()), UnseenLabels().start(Facts(view.contents))
    with ShardWriter(folder, "uint16" if tokenizer.words.size <= 1 << 16 else "uint32") as writer:
        for split, encoded in encode_all(encoder, _chunks(view, dropped, overlap, labels), workers):
            writer.write(split, encoded)
        files = writer.close()
    splits = {split: dict(writer.counts[split]) for split in SPLITS if split in writer.counts}
    if not splits.get("train", {}).get("samples"):
        raise DataError("the training split is empty: there is too little text. Give more, or set data.valid=0.")
    facts = {
        "spec": spec.to_dict(),
        "contents": view.contents.to_dict(),
        "context": spec.context,
        "packing": packing_of(spec, view.contents).to_dict(),
        "copies_of_held_out_texts": sum(dropped),
        "splits": splits,
        "warnings": [
            *spec.source.warnings(),
            *(text for text, _ in overlap.warnings()),
            *(finding.text for finding in labels.findings()),
        ],
    }
    Manifest(FORMAT, fingerprint, facts, files, sha256(folder / TOKENIZER)).write(folder)


def packing_of(spec: DataSpec, contents: Contents) -> PackingSpec:
    """The packing of a spec, resolved for records of this form; DataError if it cannot lay them out."""
    packing = spec.packing.resolve(contents)
    packing.refuse(contents, spec.context)
    return packing


def encoder_of(spec: DataSpec, contents: Contents, tokenizer: Tokenizer) -> RecordEncoder:
    """The encoder that turns records into samples."""
    packing = packing_of(spec, contents)
    context = None if packing.keeps_whole and contents.plain else spec.context
    return RecordEncoder(tokenizer, contents, context, shared=not packing.alone)


@dataclass(frozen=True)
class _View:
    """The result of the first pass over all records."""

    source: SourceSpec
    splitter: Splitter
    contents: Contents
    sample: list[str]
    lone: float | None
    """Share to be cut off for validation if there is only one document."""
    held: list[Record] | None = None
    """All records, if they are few; None: the source has to be read again."""
    only_label: str | None = None
    """The label that all training records share."""

    def refuse_constant_label(self) -> None:
        """DataError if every label of training is the same."""
        if self.only_label is None:
            return
        options = self.source.to_dict()
        option = next((name for name in ("tags", "label", "labels") if options.get(name)), None)
        place = f"the column {options[option]!r}" if option in ("tags", "label") else f"the source {self.source.kind!r}"
        text = f"every label of training in {place} is {self.only_label!r}, so there is nothing to learn"
        text = f"{text}. Add records of another class"
        raise DataError(f"{text}, or learn from the texts alone: data.source.{option}=null" if option else f"{text}.")

    def records(self) -> Iterator[Record]:
        """All records; a single document as its two parts."""
        records = self.source.records() if self.held is None else iter(self.held)
        return records if self.lone is None else halves(records, self.lone)

    def with_joins(self) -> Iterator[tuple[Record, str, bool]]:
        """Each record with its split, and whether its text goes on in the next record of the same split. Repeated
        records that are held out are left out."""
        before: tuple[Record, str] | None = None
        for record in self.records():
            split = self.splitter.assign(record)
            if before is not None:
                yield *before, record.continues and split == before[1]
            before = None if record.repeated and split != "train" else (record, split)
        if before is not None:
            yield *before, False


def look(spec: DataSpec) -> _View:
    """One pass over all records."""
    wanted = () if spec.split == "given" else (("test", spec.test), ("valid", spec.valid))
    shares = tuple((name, share) for name, share in wanted if share)
    survey, collector = Survey(Splitter(spec.split, spec.seed, shares)), ContentsCollector()
    sample = SpreadSample[tuple[str, Record]](lambda item: utf8_bytes(item[0]), spec.sample_bytes)
    last: Record | None = None
    held: list[Record] | None = []
    room = KEPT
    for record in spec.source.records():
        last = record
        survey.see(record)
        held_out = survey.splitter.source_split(record) in HELD_OUT
        hashed = record.label is not None and not held_out
        collector.see(record, held_out, survey.splitter.place(record) if hashed else 1.0)
        room -= record.characters() + RECORD_OVERHEAD
        if held is not None and room >= 0:
            held.append(record)
        else:
            held = None
        for text in () if held_out else (record.text, record.target, *record.choices):
            if text:
                sample.see((text[: spec.sample_bytes], record))
    if last is None:
        raise DataError(f"the source {spec.source.kind!r} has no records: is it empty?")
    lone = spec.valid if survey.records == 1 and spec.valid and spec.split == "auto" and last.split is None else None
    splitter = survey.close()
    contents = collector.close(splitter.hashed_out)
    if lone is None:
        certain = (item for item in sample if splitter.assign(item[1]) == "train")  # known only now
        texts = [text for text, record in certain if not splitter.leaks([record])[0]]
        return _View(spec.source, splitter, contents, texts, None, held, collector.only_label)
    if not contents.plain:
        raise DataError(f"{last.where}: the only record; nothing is left to validate with. Give more, or data.valid=0.")
    train, valid = halves([last], lone)
    if not (train.text.strip() and valid.text.strip()):
        short = f"{last.where}: {len(last.text):,} characters are too few to keep some for validation"
        raise DataError(f"{short}. Give more text, or set data.valid=0.")
    return _View(spec.source, splitter, contents, [train.text], lone, held)


def _chunks(view: _View, dropped: list[int], overlap: OverlapSearch, labels: Watch) -> Iterator[RecordChunk]:
    """Records by split, in chunks of bounded size, without training records that copy a held-out text; `dropped` gets
    the number of these, `overlap` sees every record, and `labels` every record with a label."""
    waiting: dict[str, list[tuple[Record, bool]]] = {split: [] for split in SPLITS}
    sizes: Counter[str] = Counter()

    def chunk(split: str) -> RecordChunk:
        items, waiting[split], sizes[split] = waiting[split], [], 0
        if split == "train":
            leaks = view.splitter.leaks([record for record, _ in items])
            dropped.append(sum(leaks))
            items = [item for item, leak in zip(items, leaks, strict=True) if not leak]
        return split, [record for record, _ in items], [goes_on for _, goes_on in items]

    for record, split, goes_on in view.with_joins():
        if "overlap" not in view.source.expected:
            overlap.see(record, split)
        if record.labels and UnseenLabels.kind not in view.source.expected:
            labels.see(Item(record, split))
        waiting[split].append((record, goes_on))
        sizes[split] += len(record.text) + len(record.target or "")
        if sizes[split] >= CHUNK:
            yield chunk(split)
    yield from (chunk(split) for split in SPLITS if waiting[split])


def prepared_for(
    spec: DataSpec,
    cache: str | Path | None = None,
    log: Callable[[str], None] = lambda text: None,
    fingerprint: str | None = None,
) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once.

    `fingerprint`: that of the spec, if it was just computed. Otherwise the files of the source are hashed once, and
    again if their path, size, time or inode changes.
    """
    root = _writable(Path(cache or CACHE), log)
    files = _identities(spec.source)
    fingerprint = fingerprint or spec.fingerprint(_source_fingerprint(spec.source, files, root / "sources"))
    folder = root / fingerprint[:24]
    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            try:
                prepared = prepare(spec, folder, fingerprint=fingerprint)
                # Reading damaged facts raises an error.
                prepared.contents, prepared.context, prepared.packing, prepared.counts["train"]
                return prepared
            except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
                text = str(error).split("\n")[0].split(". Prepare the data again")[0]
                why = text if isinstance(error, DataError) else type(error).__name__
                log(f"{folder}: the cached data are damaged ({why}). Preparing them again.")
                shutil.rmtree(folder)
        prepared = prepare(spec, folder, fingerprint=fingerprint)
    if _identities(spec.source) != files:
        counts = prepared.counts["train"]
        log(
            f"the data have changed while they were read. This run uses what was read: {counts['samples']:,} samples, "
            f"{counted(counts['tokens'], 'tokens')} for training. To read them again, start another run."
        )
    return prepared


def _writable(cache: Path, log: Callable[[str], None]) -> Path:
    """The cache; if it cannot be written, a temporary folder that is removed at the end of this process."""
    try:
        root = cache.expanduser()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return root
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        root = Path(tempfile.mkdtemp(prefix="anyformer-"))
        atexit.register(partial(shutil.rmtree, root, ignore_errors=True))
        reason = error.strerror if isinstance(error, OSError) else error
        log(f"{cache}: the cache cannot be written ({reason}). Prepared data go to a temporary folder, {root}.")
        return root


def _identities(source: SourceSpec) -> dict[str, tuple[str, Any]]:
    """Path, size, time and inode of the files of a source: they change when a file does."""
    return {name: (str(file.absolute()), identity(file)) for name, file in source.files().items()}


def _source_fingerprint(source: SourceSpec, files: dict[str, tuple[str, Any]], folder: Path) -> str:
    """The fingerprint of a source, stored under the path and the identity of its files."""
    if not files:
        return source.fingerprint()
    key = hashlib.sha256(json.dumps([source.to_dict(), files], sort_keys=True).encode()).hexdigest()
    entry = folder / key[:32]
    if entry.is_file():
        return entry.read_text(encoding="ascii")
    fingerprint = source.fingerprint()
    if settled(each for _, each in files.values()):
        folder.mkdir(exist_ok=True)
        store(entry, fingerprint)
    return fingerprint
