"""Writes a picture to the file that an option names, and prints the path."""

from pathlib import Path

from anyformer.cli.output.screen import Screen
from anyformer.errors import SpecError
from anyformer.reporting.pages import store


def drawn(file: Path, content: str | bytes, option: str, screen: Screen) -> None:
    """Writes a picture and reports its path; `option` is the command-line option that named the file."""
    try:
        store(file, content)
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}. Name another place: {option} FILE.") from None
    if screen.json:
        screen.data({"file": str(file)})
    else:
        screen.lines(str(file) if screen.quiet else f"written: {file}")
