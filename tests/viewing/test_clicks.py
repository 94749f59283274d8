"""The page under a mouse and a keyboard: layers, heads and stacks are chosen, and what is drawn is what was chosen.

Skipped where there is no chromium.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.reporting.browser import Browser, browser
from tests.viewing.small import built, encoder, html, pair, reading
from torch import Tensor

from anyformer.analysis.head_roles import head_roles
from anyformer.viewing.attention_maps import PartWeights, StackWeights, looks
from anyformer.viewing.page import page
from anyformer.viewing.tokenised_text import TokenisedText

STAY, MOVE = torch.eye(4), torch.eye(4).roll(1, 1).triu()  # a token to itself, a token to the next one
DOWN = ("ArrowDown", 40)


def sheet(label: str, weights: Tensor) -> PartWeights:
    zero = torch.zeros(len(weights))
    return PartWeights(label, "attention", (4, 4), weights, weights, entropy=zero, distance=zero)


def two_layers() -> str:
    """In layer 1 the first head stays and the second moves; in layer 2 they have changed places."""
    sheets = (sheet("1", torch.stack((STAY, MOVE))), sheet("2", torch.stack((MOVE, STAY))))
    return page("run", "a b c d", reading(*"abcd"), [StackWeights("encoder", 4, 4, sheets)])


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def show(tab: Browser, folder: Path, text: str) -> None:
    (folder / "page.html").write_text(text)
    assert tab.look(folder / "page.html", 1200).console == []


def line(tab: Browser, start: int, end: int) -> tuple[int, ...] | None:
    """The colour in the middle of the line between two tokens; None if there is no line."""
    script = """((y) => {
      const wires = document.getElementById("wires"), ratio = wires.width / parseFloat(wires.style.width);
      return [...wires.getContext("2d").getImageData(wires.width / 2, Math.floor(y * ratio), 1, 1).data];
    })"""
    *colour, alpha = tab.evaluate(f"{script}({22 * (start + end + 1) / 2})")
    return tuple(colour) if alpha > 60 else None


def head_colours(tab: Browser) -> list[tuple[int, ...]]:
    script = """[...document.querySelectorAll('#heads button[aria-label]')].map(
      (it) => getComputedStyle(it).borderBottomColor.match(/\\d+/g).map(Number))"""
    return [tuple(colour) for colour in tab.evaluate(script)]


def lines_of(tab: Browser) -> dict[str, int | None]:
    """The head that the lines of each kind have the colour of."""
    colours = head_colours(tab)
    drawn = {"stay": [line(tab, at, at) for at in range(4)], "move": [line(tab, at, at + 1) for at in range(3)]}
    heads: dict[str, int | None] = {}
    for kind, seen in drawn.items():
        nearest = {
            None if one is None else min(range(len(colours)), key=lambda head: math.dist(colours[head], one)) + 1
            for one in seen
        }
        for one in seen:  # a line is half transparent at its rim, but its colour is that of its head
            assert one is None or min(math.dist(colour, one) for colour in colours) < 12
        (heads[kind],) = nearest
    return heads


def pressed(tab: Browser, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].filter((it) => it.ariaPressed === 'true')"
    return tab.evaluate(f"{script}.map((it) => it.textContent)")


@pytest.mark.row(
    "VIZ-01",
    clause=("lines from token to token for each layer, one colour per head", "a selector chooses the layer"),
)
def test_lines_lead_from_token_to_token_in_the_colour_of_their_head_for_the_layer_that_is_chosen(
    tab: Browser, tmp_path: Path
) -> None:
    show(tab, tmp_path, two_layers())
    assert lines_of(tab) == {"stay": 1, "move": 2}
    tab.press("#layer", *DOWN)
    assert tab.evaluate("document.getElementById('layer').selectedOptions[0].text") == "2"
    assert lines_of(tab) == {"stay": 2, "move": 1}


@pytest.mark.row("VIZ-01", clause="lines from token to token for each layer, one colour per head")
def test_no_two_of_forty_heads_have_one_colour(tab: Browser, tmp_path: Path) -> None:
    sheets = (sheet("1", STAY.expand(40, 4, 4).clone()),)
    show(tab, tmp_path, page("run", "a", reading(*"abcd"), [StackWeights("encoder", 4, 4, sheets)]))
    colours = head_colours(tab)
    assert len(colours) == 40 and min(math.dist(a, b) for i, a in enumerate(colours) for b in colours[:i]) > 5


@pytest.mark.row("VIZ-01", clause="each head can be switched on and off")
@pytest.mark.row("VIZ-06", clause="one head can be chosen and highlighted")
def test_a_click_switches_a_head_on_or_off_and_with_shift_leaves_it_alone(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, two_layers())
    steps = [
        ("#heads button:nth-child(1)", False, {"stay": None, "move": 2}, ["2"]),
        ("#heads button:nth-child(1)", False, {"stay": 1, "move": 2}, ["1", "2", "all"]),
        ("#heads button:nth-child(2)", False, {"stay": 1, "move": None}, ["1"]),
        ("#heads button:nth-child(2)", True, {"stay": None, "move": 2}, ["2"]),
        ("#heads button:last-child", False, {"stay": 1, "move": 2}, ["1", "2", "all"]),
    ]
    for selector, shift, lines, on in steps:
        tab.click(selector, shift=shift)
        assert (lines_of(tab), pressed(tab, "#heads button")) == (lines, on)


@pytest.mark.row("VIZ-02", clause="a grid of layers x heads, one thumbnail per cell")
def test_every_thumbnail_is_the_map_of_its_layer_and_head(tab: Browser, tmp_path: Path) -> None:
    spec = encoder(depth=3)
    (look,) = looks(spec, built(spec), range(5))
    script = """[...document.querySelectorAll('.heads tr')].map((line) => [...line.querySelectorAll('td canvas')].map(
      (it) => [it.width, it.height, [...it.getContext('2d').getImageData(0, 0, it.width, it.height).data]]))"""
    show(tab, tmp_path, html(spec, built(spec), *"abcde"))
    grid = tab.evaluate(script)
    assert [len(line) for line in grid] == [2, 2, 2]  # a line for each layer, a cell for each head
    for part, line in zip(look.sheets, grid, strict=True):
        for weights, (width, height, bytes_) in zip(part.overview, line, strict=True):
            shades = torch.tensor(bytes_).view(5, 5, 4)[..., 3] / 255
            assert (width, height) == (5, 5)
            torch.testing.assert_close(shades, (weights / weights.max()).sqrt(), rtol=0.0, atol=0.01)


@pytest.mark.row("VIZ-06", clause="one head can be chosen and highlighted")
def test_a_click_on_a_thumbnail_chooses_its_head_and_marks_it_everywhere(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, two_layers())
    tab.click(".heads tr:nth-child(2) td:nth-of-type(2) button")
    assert pressed(tab, "#heads button") == ["2"] and lines_of(tab) == {"stay": 2, "move": None}
    assert tab.evaluate("document.getElementById('now').textContent").startswith("encoder, layer 2, head 2:")
    cells = "[...document.querySelectorAll('.heads button')]"
    assert tab.evaluate(f"{cells}.map((it) => it.ariaPressed)") == ["false", "false", "false", "true"]
    shadows = tab.evaluate(f"{cells}.map((it) => getComputedStyle(it).boxShadow)")
    assert shadows[3] != "none" and shadows[:3] == ["none"] * 3
    assert tab.evaluate("document.getElementById('comparison').hidden")


@pytest.mark.row("VIZ-06", clause="several heads are compared: what each one attends to is shown")
def test_several_heads_are_compared_at_the_token_that_is_chosen(tab: Browser, tmp_path: Path) -> None:
    script = """[...document.querySelectorAll('#compare tr')].map((line) => [line.querySelector('th').textContent,
      ...[...line.querySelectorAll('td span')].map((it) => it.textContent)])"""
    spec = encoder(depth=1)
    (look,) = looks(spec, built(spec), range(4))
    show(tab, tmp_path, html(spec, built(spec), *"abcd"))
    tab.click("#left button:nth-child(3)")
    compared = tab.evaluate(script)
    for head, (name, *strongest) in enumerate(compared):
        values, places = look.sheets[0].weights[head, 2].topk(3)
        expected = [f"{'abcd'[at]}{value:.4f}" for at, value in zip(places.tolist(), values.tolist(), strict=True)]
        assert name == f"head {head + 1}" and strongest == [one for one in expected if not one.endswith("0.0000")]
    assert len(compared) == 2


@pytest.mark.row("VIZ-04", clause="a drop-down chooses encoder, cross or decoder attention")
def test_a_drop_down_chooses_encoder_decoder_or_cross_attention(tab: Browser, tmp_path: Path) -> None:
    spec = pair()
    read = TokenisedText([2, 8, 9, 1], [5, 6, 7], ["<bos>", "a", "b", "c"], ["x", "y", "z"], ["a", "b", "c", "<eos>"])
    stacks = {look.name: look for look in looks(spec, built(spec), read.tokens, read.source)}
    seen = []
    show(tab, tmp_path, page("run", "x y z", read, list(stacks.values())))
    texts = tab.evaluate("[...document.querySelectorAll('#look option')].map((it) => it.textContent)")
    for _ in texts:
        now, sides = tab.evaluate(
            "[{...document.getElementById('now').dataset},"
            " ['left', 'right'].map((it) => document.getElementById(it).innerText.trim().split(/\\s+/))]"
        )
        weights = stacks[now["look"]].sheets[0].weights
        heads = pressed(tab, "#heads button[aria-label]")
        value = weights[[int(head) - 1 for head in heads], int(now["row"]), int(now["column"])].mean().item()
        assert float(now["value"]) == pytest.approx(value, abs=1e-4)
        seen.append((now["look"], *map(len, sides)))
        tab.press("#look", *DOWN)
    assert seen == [("encoder", 3, 3), ("decoder", 4, 4), ("cross", 4, 3)]
    assert texts == ["encoder: input to input", "decoder: output to output", "cross: output to input"]


@pytest.mark.row("VIZ-12", clause="probing: what a head does is read off by a probe")
def test_roles_stand_below_the_thumbnails(tab: Browser, tmp_path: Path) -> None:
    weights = torch.stack((MOVE, STAY))
    weights[0, 3, 3] = 1.0
    part = PartWeights(
        "1", "attention", (4, 4), weights, weights, torch.zeros(2), torch.zeros(2), tuple(head_roles(weights, range(4)))
    )
    show(tab, tmp_path, page("run", "a", reading(*"abcd"), [StackWeights("encoder", 4, 4, (part,))]))
    words = tab.evaluate("[...document.querySelectorAll('.heads .role')].map((it) => it.textContent)")
    assert words == ["next token 100%", "itself 100%"]
