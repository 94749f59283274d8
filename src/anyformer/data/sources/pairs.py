"""Pairs line by line: two parallel files, or one with a tab between the halves."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from anyformer.core.readable_numbers import counted
from anyformer.data.record import Record
from anyformer.data.sources.files import FileSource, check_encoding, existing, kept, lines, readable
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Pairs(FileSource, kind="pairs"):
    """Parallel text: line n of one file belongs to line n of the other; or source, tab, target on each line."""

    path: str
    """The source side; or, without target_path, a file with both sides and a tab between them."""
    target_path: str | None = None
    """The target side, with as many lines."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[Pairs, ...]":
        return (cls(path="talks.en", target_path="talks.de"), cls(path="talks.tsv"))

    def check(self) -> None:
        check_encoding(self.encoding)

    def records(self) -> Iterator[Record]:
        path = existing(self.path)
        if self.target_path is not None:
            return kept(self._side_by_side(path, existing(self.target_path)), lambda pair: pair, self, self.on_error)

        def halves(item: tuple[int, str]) -> Record:
            number, cells = item[0], item[1].split("\t")
            if len(cells) != 2:
                other = "data.source.kind=csv data.source.text=#1 data.source.target=#2"
                hint = f" Say which columns: {other}" if len(cells) > 2 else ""
                raise DataError(
                    f"{path}:{number}: expected source, tab, target; got {counted(len(cells), 'columns')}.{hint}"
                )
            return Record(text=cells[0], target=cells[1], where=f"{path}:{number}")

        numbered = (line for line in lines(path, self.encoding, self.on_error) if line[1])
        return kept(numbered, halves, self, self.on_error)

    def files(self) -> dict[str, Path]:
        paths = [self.path] if self.target_path is None else [self.path, self.target_path]
        return {str(side): readable(existing(path)) for side, path in enumerate(paths)}

    def _side_by_side(self, path: Path, other: Path) -> Iterator[Record]:
        """An empty half is kept, not dropped: the checks report what it means for the alignment."""
        sources, targets = (lines(file, self.encoding, self.on_error) for file in (path, other))
        counts = [0, 0]
        for source, target in zip_longest(sources, targets):
            counts[0] += source is not None
            counts[1] += target is not None
            if source and target:
                yield Record(text=source[1], target=target[1], where=f"{path}:{source[0]}")
        if counts[0] != counts[1]:
            sizes = f"{path} has {counted(counts[0], 'lines')}, {other} has {counts[1]:,}"
            raise DataError(f"{sizes}: line n of one must belong to line n of the other.")
