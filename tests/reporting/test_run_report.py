"""The page of a run: whole in itself, safe whatever the data say, and there for a run in any state."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.reporting.folders import EVIL, make, trained, validated, whole

from anyformer.core import Work, cost, decode
from anyformer.errors import CheckpointError
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_files import RunFiles
from anyformer.reporting.run_report import loss_charts, run_html, run_markdown, write_report
from anyformer.training import Recipe

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collects what a browser would act upon; complains of tags that are not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(folder: Path) -> str:
    return run_html(RunFacts.of(folder))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a whole run."""
    return page(whole(tmp_path_factory.mktemp("whole") / "run"))


def test_the_page_loads_nothing_and_runs_nothing(text: str) -> None:
    found = Page(text).tags
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & {tag for tag, _ in found}
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")], (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", text)


def test_the_policy_of_the_page_allows_its_own_style_and_nothing_else(text: str) -> None:
    policy = next(it["content"] for tag, it in Page(text).tags if it.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None and style is not None
    sha = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{sha}'" in policy
    assert "unsafe" not in policy


def test_text_from_data_names_and_samples_stays_text(tmp_path: Path) -> None:
    folder = whole(tmp_path / EVIL.replace("/", "_"))
    text = page(folder)
    assert EVIL not in text and "<script" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3  # prompt, sample, data path, environment
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", run_markdown(RunFacts.of(folder)))  # what is fenced is quoted
    assert "script" in outside and not re.search(r"(?<!\\)<script", outside)


def test_references_inside_pictures_all_lead_somewhere(text: str) -> None:
    named = re.findall(r' id="([^"]+)"', text)
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used and used <= set(named)


def test_the_losses_are_drawn_by_step_token_flop_and_time(text: str) -> None:
    labels = re.findall(r'aria-label="([^"]+)"', text)
    assert labels[:4] == ["Loss by step", "Loss by token", "Loss by FLOP", "Loss by second"]
    assert {"Learning rate", "Throughput", "Peak memory"} < set(labels)


def test_the_report_says_the_best_validation_loss_its_perplexity_and_its_checkpoint(tmp_path: Path) -> None:
    lines = [trained(20, 3.5), validated(20, 2.0), trained(40, 3.0), validated(40, 2.5)]
    facts = RunFacts.of(make(tmp_path / "run", lines, complete=True))
    perplexity = f"{math.exp(2.0):.1f}"
    assert f"best validation loss 2.0000 (perplexity {perplexity}) at step 20, 2.5000 at the end" in facts.sentence
    assert facts.to_dict()["best_step"] == 20 and next(loss_charts(facts)).marks == [20.0]
    assert "at step 20; 2.5000 at the end" in run_markdown(facts)  # this checkpoint was not kept
    (facts.files.folder / "checkpoints" / "step-000020").mkdir()
    assert "best checkpoint, step 20; 2.5000 at the end" in run_markdown(facts)


def test_a_smoothed_loss_has_no_perplexity(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", [trained(40, 3.0), validated(40, 2.5)])
    file = folder / "recipe.toml"
    file.write_text(file.read_text().replace('kind = "next_token"', 'kind = "next_token"\nsmoothing = 0.1'))
    assert RunFacts.of(folder).perplexity is None


def test_what_was_predicted_is_what_the_cost_card_says(tmp_path: Path) -> None:
    facts = RunFacts.of(whole(tmp_path / "run"))
    model = decode(Recipe, dict(facts.files.recipe)).model
    row, card = cost(model, Work(batch=1, length=32)).total, facts.prediction
    assert card is not None
    assert card.params == row.params
    assert card.step_flops == 4 * (row.flops_forward + row.flops_backward)  # 128 tokens are four rows
    assert card.activation_bytes == 4 * row.activation_bytes and card.kept_bytes == 16 * row.params


def test_a_validation_between_two_lines_stands_between_them(tmp_path: Path) -> None:
    facts = RunFacts.of(make(tmp_path / "run", [trained(10, 4.0), trained(20, 3.0), validated(15, 3.6)]))
    point = facts.points(facts.validated)[0]
    assert (point.tokens, point.wall_s) == (15 * 128, 7.5)


@pytest.mark.parametrize(
    "lines",
    [[], [trained(1, 4.0)], [trained(1, math.nan, status="non_finite", gradient_norm=math.inf)], [validated(1, 2.0)]],
)
def test_a_run_with_one_line_or_none_has_a_page(tmp_path: Path, lines: list[dict[str, object]]) -> None:
    folder = make(tmp_path / "run", lines)
    text = page(folder)
    Page(text)
    assert "nan" not in run_markdown(RunFacts.of(folder)).lower().split("environment")[0]
    json.dumps(RunFacts.of(folder).to_dict(), allow_nan=False)


def test_a_cut_line_and_damaged_files_do_no_harm(tmp_path: Path) -> None:
    folder = whole(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    (folder / "environment.json").write_text("{")
    (folder / "sources.json").write_text("[1]")
    (folder / "events.log").write_bytes(b"\xff\xfe nonsense")
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / "test.json").write_text(
        '{"scores": {"loss": 3, "bleu": {"value": NaN}}, "yardsticks": [4]}'
    )
    (folder / "evaluations" / "valid.json").write_text("[1]")
    assert RunFacts.of(folder).step == 40
    Page(page(folder))


def test_a_recipe_of_parts_that_are_not_installed_has_a_page_without_predictions(tmp_path: Path) -> None:
    folder = whole(tmp_path / "run")
    file = folder / "recipe.toml"
    file.write_text(file.read_text().replace('kind = "attention"', 'kind = "from_the_future"'))
    facts = RunFacts.of(folder)
    assert facts.prediction is None and facts.to_dict()["predicted"] is None
    text = run_html(facts)
    assert "Loss by token" in text and "Loss by FLOP" not in text


def test_skipped_updates_are_told(tmp_path: Path) -> None:
    lines = [trained(10, 4.0), trained(13, math.nan, status="non_finite"), trained(20, 3.0)]
    text = page(make(tmp_path / "run", lines))
    assert "1 update was not applied" in text and "step 13 (non_finite)" in text


def test_many_lines_make_a_small_page(tmp_path: Path) -> None:
    text = page(make(tmp_path / "run", [trained(step, 3.0 + math.sin(step)) for step in range(1, 6_001)]))
    assert len(text) < 400_000


def test_a_page_goes_where_it_is_asked_to_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = whole(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert write_report(folder, tmp_path / "page.md").read_text().startswith("# run\n")
    assert not list(tmp_path.glob(".page*")) and not list(folder.glob(".report*"))
    with pytest.raises(CheckpointError, match="not a run folder"):
        write_report(tmp_path)


def test_the_states_of_a_run_are_told_apart(tmp_path: Path) -> None:
    failed = '2026-01-01T00:00:00Z started {"steps": 40}\n2026-01-01T00:00:01Z failed {"step": 1}\n'
    states = {
        "complete": make(tmp_path / "a", [], complete=True),
        "interrupted": make(tmp_path / "b", [], complete=False),
        "failed": make(tmp_path / "c", [], events=failed),
    }
    assert {name: RunFiles(folder).state for name, folder in states.items()} == {name: name for name in states}
