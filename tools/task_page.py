"""Writes docs/tasks.md and its picture from the stored figures of the claim CLM-31: `python tools/task_page.py`"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from anyformer.analysis.claim import OURS, Figures, claim, stored
from anyformer.analysis.claims.task_matrix import breaks, shares
from anyformer.analysis.task_suite import FAMILIES, RATES, SEEDS, TASKS, TIMES, Effort
from anyformer.drawing.figures import Drawing

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "tasks.md", DOCS / "tasks.svg"
NAME, INCHES = "CLM-31", (11.0, 5.0)
THEORY: Mapping[str, str] = {
    "first_token_recall": "Attention reaches every place at once; a window or convolution only as far as its layers.",
    "flip_flop": "One bit of state suffices for a recurrence; attention has to find the last write among many ignored "
    "bits, and errs on longer texts (arXiv 2306.00946).",
    "associative_recall": "Attention looks a key up; a state of fixed size has to hold all pairs (arXiv 2312.04927).",
    "selective_copy": "Blanks at random places: a recurrence whose steps depend on the input can skip them, "
    "one with fixed steps (S4D) and a convolution cannot (arXiv 2312.00752).",
    "copy": "Two layers of attention copy any length; a state of fixed size cannot (arXiv 2402.01032).",
    "reverse": "As copying, but the distance grows with every symbol.",
    "sort": "A count of each number suffices, so that a state of fixed size can hold what is needed.",
    "parity": "One bit of state for a nonlinear recurrence. Attention of fixed depth (arXiv 1906.06755) and linear "
    "recurrences with positive decay (arXiv 2404.08819, 2411.12537) cannot at growing length.",
    "modular_addition": "A state of ten values: as parity.",
    "anbn": "The LSTM counts in its cells (arXiv 1805.04908); attention can compare averages of a and b.",
    "dyck": "A stack is needed, and its depth grows with the length.",
    "listops": "A stack too; shallow expressions are nearly a table.",
    "adding": "Two marked numbers: attention finds them, a gated recurrence holds the first one.",
    "in_context_regression": "Attention can compare the question with all examples (arXiv 2208.01066).",
    "future_label": "The answer has not been read yet: impossible for every causal model. Chance knows the "
    "length of a text, which a model does not.",
}
"""What is known or expected of each task, without regard to the measurements."""


def page(figures: Figures, seconds: float) -> str:
    """The page as Markdown."""
    return "\n".join([*_introduction(figures, seconds), *_accuracies(figures), *_lengths(figures), *_rates(figures)])


def _introduction(figures: Figures, seconds: float) -> Iterator[str]:
    effort = Effort()
    sizes = [size for row in figures["params"].values() for size in row.values()]
    yield f"""\
# Recall, state tracking, length: eight families, fifteen tasks

Written by `python tools/task_page.py` from the stored figures of `anyformer claims {NAME} --train`; do not edit.

Which architecture can learn what? Eight families of models learn each of the {len(TASKS)} synthetic tasks with
{min(sizes):,} to {max(sizes):,} parameters: two layers of 128 channels with attention (`transformer`), or with another
mixer in its place and the width that gives as many parameters. `window` sees 16 tokens a layer, `cnn` has four narrower
layers that see 60 tokens together, and `hybrid` is one layer of Mamba and one of windowed attention.

Texts of a quarter, a half, three quarters and the whole of a length are learned: {effort.texts:,} texts,
{effort.steps:,} updates of 4,096 tokens with AdamW. Every family tries the same {len(RATES)} learning rates
({", ".join(f"{rate:g}" for rate in RATES)}) by whole runs on a seed that is not judged. {len(SEEDS)} seeds
then answer {effort.test_texts} fresh texts of each length. Three seeds show large differences; they are no verdict on
small ones.
{len(TASKS) * len(FAMILIES) * (len(RATES) + len(SEEDS))} runs, {seconds / 60:.0f} minutes on one H200 with torch 2.11.

![Accuracy of every family on every task](tasks.svg)"""


def _accuracies(figures: Figures) -> Iterator[str]:
    yield """
## Accuracy at the learned length

Right labels, tags, or symbols of the target, each after the right symbols before it: the mean of three seeds in
percent, and the lowest and the highest seed where they are more than five points apart. Bold: the best of the row and
what is less than two points behind it, if it is above the middle between chance and 100.
"""
    yield from _header("task", "chance", *FAMILIES)
    for task, suite in TASKS.items():
        row = {family: [seed[0] for seed in figures["right"][task][family]] for family in FAMILIES}
        best, chance = max(map(fmean, row.values())), suite.task.chance
        cells = [_cell(values, max(best - 0.02, (1 + chance) / 2)) for values in row.values()]
        yield _line(f"`{task}`", f"{100 * chance:.0f}", *cells)


def _cell(values: Sequence[float], bold_from: float) -> str:
    mean, least, most = (100 * value for value in (fmean(values), min(values), max(values)))
    spread = f" ({least:.0f}-{most:.0f})" if most - least > 5 else ""
    text = f"{mean:.0f}{spread}"
    return f"**{text}**" if fmean(values) >= bold_from else text


def _lengths(figures: Figures) -> Iterator[str]:
    yield f"""
## The length at which it breaks

The largest multiple of the learned length, of {", ".join(map(str, TIMES))}, up to which a family stays above the middle
between chance and 100%; a dash if it is below it at the learned length. Beside it what theory expects.
"""
    yield from _header("task", *FAMILIES, "expected")
    for task, by_family in breaks(figures).items():
        cells = (f"x{by_family[name]}" if by_family[name] else "-" for name in FAMILIES)
        yield _line(f"`{task}`", *cells, THEORY[task])
    yield "\nAccuracy on texts of twice, four and eight times the learned length, the mean of three seeds in percent:\n"
    yield from _header("task", *FAMILIES)
    by_times = [shares(figures, times) for times in TIMES[1:]]
    for task in TASKS:
        yield _line(
            f"`{task}`", *(" / ".join(f"{100 * rows[task][name]:.0f}" for rows in by_times) for name in FAMILIES)
        )


def _rates(figures: Figures) -> Iterator[str]:
    chosen = [rate for row in figures["rates"].values() for rate in row.values()]
    lowest, highest = (sum(rate == edge for rate in chosen) for edge in (min(RATES), max(RATES)))
    yield f"""
## The learning rates

Of {len(chosen)} pairs of a task and a family, {lowest} chose the lowest rate that was tried and {highest} the highest:
there a better one may lie outside.
"""
    yield from _header("task", *FAMILIES)
    for task, row in figures["rates"].items():
        yield _line(f"`{task}`", *(f"{row[family]:g}" for family in FAMILIES))


def _header(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield _line(*("---" for _ in names))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def picture(figures: Figures) -> Drawing:
    """The accuracies at the learned length and at twice the length, side by side."""
    panels = claim(NAME).picture(figures)

    def draw(figure: Figure) -> None:
        for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            axes.set_title(panel.title, fontsize="medium")
            panel.draw(axes)

    return Drawing(draw, INCHES)


def main() -> None:
    """Writes the page and the picture."""
    result = stored(OURS)[NAME]
    PAGE.write_text(page(result.figures, result.seconds) + "\n", encoding="utf-8")
    PICTURE.write_bytes(picture(result.figures).bytes("svg"))


if __name__ == "__main__":
    main()
