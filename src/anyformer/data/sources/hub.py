"""Datasets of the Hugging Face hub, streamed by `datasets`: the one source that uses the network, only when named."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.columns import chosen, record_of, split_named
from anyformer.data.sources.files import OnError, kept
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Hub(SourceSpec, kind="hub"):
    """A dataset of the Hugging Face hub by its name (needs the extra `data` and the network). No code of it is run."""

    name: str
    """owner/name, as the hub calls it."""
    config: str | None = None
    """Which configuration of the dataset, where it has several."""
    revision: str | None = None
    """The commit to read; give one for a run that can be repeated."""
    splits: tuple[str, ...] = ()
    """Which of its splits to read; without any, those for training, validation and test."""
    text: str = "text"
    """The column of the document, or of the source of a pair; `a.b` is column b inside column a."""
    target: str | None = None
    """The column of the other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """The column of a class or a number."""
    tags: str | None = None
    """The column of a list of labels, one for each word."""
    choices: str | None = None
    """The column of a list of answers; the label is the index of the right one."""
    group: str | None = None
    """The column of a name: records of one group never cross a split."""
    on_error: OnError = "stop"
    """What to do at a bad row: stop, or skip it (which stops past 1%)."""

    @classmethod
    def examples(cls) -> "tuple[Hub, ...]":
        return (cls(name="owner/reviews", label="stars"),)

    def records(self) -> Iterator[Record]:
        names = chosen(self)

        def read(item: tuple[str, str, Any]) -> Record:
            split, where, row = item
            return replace(record_of(row, names, where), split=split_named(split))

        return kept(self._rows(), read, self, self.on_error)

    def fingerprint(self) -> str:
        datasets = _datasets(self.name)
        with self._refusals():
            builder = datasets.load_dataset_builder(self.name, self.config, revision=self.revision)
        return f"{self.digest()}-{builder.hash}"

    def _rows(self) -> Iterator[tuple[str, str, Any]]:
        datasets = _datasets(self.name)
        with self._refusals():
            dataset = datasets.load_dataset(self.name, self.config, revision=self.revision, streaming=True)
        known = list(dataset)
        splits = self.splits or tuple(name for name in known if split_named(name))
        if not splits or set(splits) - set(known):
            raise DataError(f"{self.name}: its splits are {', '.join(known)}. Choose with data.source.splits=[...]")
        with self._refusals():
            for split in splits:
                for number, row in enumerate(dataset[split], 1):
                    yield split, f"{self.name}/{split}:{number}", row

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turns errors of the network, the hub or the files of the dataset into a DataError."""
        try:
            yield
        except Exception as error:
            raise DataError(f"{self.name}: the hub did not give it: {error}") from None


def _datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name}: reading from the hub needs datasets: pip install 'anyformer[data]'") from None
    return datasets
