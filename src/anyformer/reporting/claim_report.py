"""The page of the claims of the lectures: each claim, its measured figures, and its verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

import anyformer
from anyformer.analysis.claim import Claim, ClaimResult, Verdict
from anyformer.disk import store
from anyformer.drawing.figures import Panel, beside
from anyformer.reporting.pages import drawn, html

PAGE = "claims.html"
PANEL_INCHES = (4.6, 3.2)


@dataclass(frozen=True)
class Answer:
    """A claim with its measured result; None if its models have not been trained yet."""

    claim: Claim
    result: ClaimResult | None

    @property
    def verdict(self) -> Verdict | None:
        return self.claim.judge(self.result.figures) if self.result else None

    @property
    def word(self) -> str:
        return self.verdict.word if self.verdict else "not trained yet"

    @property
    def because(self) -> str:
        return self.verdict.because if self.verdict else f"anyformer claims {self.claim.ids[0]} --train"

    @property
    def panels(self) -> Sequence[Panel]:
        return self.claim.picture(self.result.figures) if self.result else ()

    @property
    def table(self) -> Sequence[Sequence[str]]:
        return self.claim.table(self.result.figures) if self.result else ()

    def to_dict(self) -> dict[str, Any]:
        claim = {"ids": list(self.claim.ids), "says": self.claim.says, "trains": self.claim.trains}
        if self.result is None:
            return {**claim, "verdict": None, "because": self.because}
        known = {"figures": dict(self.result.figures), "command": self.result.command, "seconds": self.result.seconds}
        where = {"machine": self.result.machine} if self.claim.times else {}
        return {**claim, "verdict": self.word, "because": self.because, **known, **where}


def sentence(answers: Sequence[Answer]) -> str:
    """The number of claims with each verdict, as a sentence."""
    counts = Counter(answer.word for answer in answers)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common()) + "."


def write_page(folder: Path, answers: Sequence[Answer], name: str = PAGE) -> Path:
    """Writes a self-contained HTML page of claims."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = []
    for answer in answers:
        panels = [(panel.title, Markup(drawn(panel.draw, panel.title))) for panel in answer.panels]
        figures = answer.result.figures if answer.result else {}
        shown.append((answer, panels, [(name, _shown(value)) for name, value in figures.items()]))
    facts = {"sentence": sentence(answers), "answers": shown, "version": anyformer.__version__}
    return store(folder / name, html("claims", facts))


def write_picture(folder: Path, answer: Answer) -> Path | None:
    """Writes the panels of one claim as an SVG file; None if it has no panels."""
    if not answer.panels:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return store(folder / f"{answer.claim.ids[0]}.svg", beside(answer.panels, PANEL_INCHES).bytes("svg"))


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)
