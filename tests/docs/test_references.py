"""docs/references.md lists what the lectures point to, and a reader of the README gets there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/references.md"
LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
ROW = "TSK-11"


def links() -> set[str]:
    """The targets of all links of the page: an address that is only mentioned does not count."""
    return set(LINK.findall(PAGE.read_text(encoding="utf-8")))


@pytest.mark.row(ROW, clause="a references page exists")
def test_the_readme_links_the_references() -> None:
    assert "](docs/references.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(links()) > 20


NAMED = {
    "state spaces": "https://huggingface.co/blog/lbourdois/get-on-the-ssm-train",
    "bertviz": "https://github.com/jessevig/bertviz",
    "tensor2tensor": "https://github.com/tensorflow/tensor2tensor",
    "paperswithcode": "https://paperswithcode.com/sota/sentiment-analysis-on-sst-2-binary",
}


@pytest.mark.row(ROW, clause="docs link the SSM blog, bertviz, tensor2tensor and paperswithcode")
@pytest.mark.parametrize("name", NAMED)
def test_an_article_or_tool_that_the_lectures_point_to_is_linked(name: str) -> None:
    assert NAMED[name] in links()


@pytest.mark.row(ROW, clause="docs link arXiv 2001.08361")
def test_the_scaling_laws_are_linked() -> None:
    assert "https://arxiv.org/abs/2001.08361" in links()


@pytest.mark.row(ROW, clause="addresses are right: hello_t2t.ipynb, github.com/jessevig/bertviz")
def test_the_two_garbled_addresses_are_right() -> None:
    notebook = "https://colab.research.google.com/github/tensorflow/tensor2tensor/blob/master/tensor2tensor/notebooks/"
    assert {f"{notebook}hello_t2t.ipynb", "https://github.com/jessevig/bertviz"} <= links()


def test_an_arxiv_link_goes_to_the_paper_that_its_text_names() -> None:
    shown = re.findall(r"\[arXiv ([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(shown) > 20
    assert [pair for pair in shown if pair[0] != pair[1]] == []
