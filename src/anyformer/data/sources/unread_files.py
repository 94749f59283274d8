"""The files of a folder that a source does not read, counted and named in one sentence."""

from collections.abc import Collection
from pathlib import Path

from anyformer.core.readable_numbers import listed
from anyformer.data.sources.files import HIDDEN

NAMED = 3
"""Files of one ending that are named."""


def unread_files(folder: Path, names: Collection[str]) -> list[str]:
    """A sentence that counts and names the files of a folder that are not read, by their endings; none if all are."""
    if not folder.is_dir():
        return []
    others: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if name not in names and file.is_file() and not HIDDEN.search(name):
            empty = "" if file.stat().st_size else " (empty)"
            others.setdefault((file.suffix or "without ending") + empty, []).append(name)
    if not others:
        return []
    counts = ", ".join(
        f"{len(files):,} {ending}: {listed(files, NAMED)}"
        for ending, files in sorted(others.items(), key=lambda item: -len(item[1]))
    )
    total = sum(map(len, others.values()))
    return [f"{folder}: {total:,} {'file is' if total == 1 else 'files are'} not read ({counts})."]
