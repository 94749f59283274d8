"""The page about time to quality is made from its raw file."""

from benchmarks.speedrun_page import PAGE, page, read


def test_the_page_is_made_from_its_raw_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read())
