"""The pictures of the documents show what the program, the README and the import contracts say today."""

from pathlib import Path

from tools.pictures import pictures

DOCS = Path(__file__).parents[2] / "docs"


def test_the_drawn_pictures_are_up_to_date() -> None:
    for name, drawn in pictures().items():
        assert drawn == (DOCS / name).read_text(encoding="utf-8"), f"{name}: run make rows"
