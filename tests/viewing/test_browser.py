"""The page in a real browser: its numbers, its speed, and what never runs. Skipped where there is no chromium."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.viewing.small import CHROMIUM, EVIL, built, encoder, in_browser, long_page, pair, reading

from anyformer.viewing.attention_maps import looks
from anyformer.viewing.page import page
from anyformer.viewing.tokenised_text import TokenisedText


class Dom(HTMLParser):
    """What the browser made of the page: the number that is shown, the cells, the title."""

    def __init__(self, text: str):
        super().__init__()
        self.text, self.now, self.cells, self.drawn = text, dict[str, str](), list[dict[str, str]](), None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "html":
            self.drawn = found.get("data-drawn")
        elif found.get("id") == "now":
            self.now = found
        elif tag == "button" and "data-entropy" in found:
            self.cells.append(found)


@pytest.mark.row("VIZ-01")
@pytest.mark.row("VIZ-06")
def test_the_number_of_a_chosen_cell_is_that_of_the_tensor(tmp_path: Path) -> None:
    spec = pair()
    read = TokenisedText([2, 8, 9, 1], [5, 6, 7], ["<bos>", "a", "b", "c"], ["x", "y", "z"], ["a", "b", "c", "<eos>"])
    found = {look.name: look for look in looks(spec, built(spec), read.tokens, read.source)}
    (tmp_path / "page.html").write_text(page("run", "x y z", read, list(found.values())))
    for name, layer, head, row, column in (("cross", 2, 4, 3, 1), ("decoder", 1, 2, 2, 0)):
        address = f"#look={name}&layer={layer}&head={head}&token={row}&other={column}"
        now = Dom(in_browser(tmp_path / "page.html", address)).now
        expected = found[name].sheets[layer - 1].weights[head - 1, row, column].item()
        assert now["data-look"] == name and float(now["data-value"]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.row(
    "VIZ-02", clause=("the page has exactly L * H cells", "each cell holds the matrix of its own layer and head")
)
@pytest.mark.row("VIZ-12")
def test_the_grid_has_a_cell_for_every_head_with_its_entropy_and_distance(tmp_path: Path) -> None:
    spec = encoder(depth=3)
    (look,) = looks(spec, built(spec), range(5))
    (tmp_path / "page.html").write_text(page("run", "text", reading(*"abcde"), [look]))
    cells = Dom(in_browser(tmp_path / "page.html")).cells
    assert [(cell["data-layer"], cell["data-head"]) for cell in cells] == [(a, b) for a in "123" for b in "12"]
    for name in ("entropy", "distance"):
        expected = [value for sheet in look.sheets for value in getattr(sheet, name).tolist()]
        assert [float(cell[f"data-{name}"]) for cell in cells] == pytest.approx(expected, abs=1e-4)


def test_a_script_in_a_text_a_token_a_name_or_an_address_never_runs(tmp_path: Path) -> None:
    spec = encoder(depth=1)
    evil = (EVIL, "</script>" + EVIL, "<img src=x onerror=document.title='owned'>", "it")
    (tmp_path / "page.html").write_text(page(EVIL, EVIL, reading(*evil), looks(spec, built(spec), range(4))))
    for address in ("", f"#look={EVIL}&token=1", "#token=999999&head=0&layer=__proto__"):
        found = Dom(in_browser(tmp_path / "page.html", address))
        title = re.search(r"<title>(.*?)</title>", found.text)
        assert title and title[1] != "owned" and "attention" in title[1]
        assert found.drawn is not None and "<img" not in found.text  # the page itself has run to its end


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")
def test_a_page_of_2048_tokens_is_drawn_within_a_few_seconds(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(long_page(encoder()))
    found = Dom(in_browser(tmp_path / "page.html"))
    assert found.drawn is not None and int(found.drawn) < 5000
