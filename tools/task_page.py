"""Writes docs/tasks.md and its picture from the stored figures of the claim CLM-31: `python tools/task_page.py`"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from anyformer.analysis.claim import OURS, ClaimResult, Figures, claim, stored
from anyformer.analysis.claims.task_matrix import accuracies, reach
from anyformer.analysis.task_suite import FAMILIES, MULTIPLES, RATES, SEEDS, TASKS, Effort
from anyformer.drawing.figures import Drawing

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "tasks.md", DOCS / "tasks.svg"
NAME, INCHES = "CLM-31", (11.0, 5.0)
NO_OPTIONS = ("kind", "count", "seed")
EXPECTED: Mapping[str, str] = {
    "first_token_recall": "Attention sees every place; a window or a convolution sees as far as its layers reach.",
    "flip_flop": "One bit of state is enough for a recurrence. Attention has to find the last write among many ignored "
    "bits, and errs on longer texts (arXiv 2306.00946).",
    "associative_recall": "Two layers of attention can look up a key; a state of fixed size has to hold all pairs "
    "(arXiv 2312.04927).",
    "selective_copy": "The blanks stand at random places: steps that depend on the input can skip them; fixed steps "
    "(S4D) and convolutions do badly (arXiv 2312.00752).",
    "copy": "Attention can copy texts far longer than what a state of fixed size can hold (arXiv 2402.01032); whether "
    "this carries over to longer texts depends on the positions.",
    "reverse": "As in `copy`, but the distance grows with every symbol.",
    "sort": "Counting how often each number occurs is enough, which a state of fixed size can hold.",
    "parity": "One bit of state is enough for a nonlinear recurrence. Attention learns it hardly (arXiv 1906.06755), "
    "linear recurrences with non-negative decay cannot at growing length (arXiv 2405.17394, 2411.12537).",
    "modular_addition": "A state of ten values is enough for a nonlinear recurrence, as in `parity`.",
    "anbn": "The LSTM can count in its cells (arXiv 1805.04908). There are only 399 words up to the learned length, "
    "and all are learned: what tests counting are the longer words.",
    "dyck": "A stack is needed that grows with the length.",
    "listops": "Operations are at most four deep at every length, so a short stack is enough.",
    "adding": "Attention can find the two marked numbers; a gated recurrence can hold the first one.",
    "in_context_regression": "Attention can compare the question with all examples (arXiv 2208.01066). There are 16 "
    "places on a line, so longer texts often hold the answer as an example; rounding makes even the best reader err.",
    "future_label": "No causal model can: the answer has not been read yet. What remains are guesses, and the last "
    "tags of a text whose length is known.",
}
"""What is known or expected of each task, without regard to the measurements."""


def page(result: ClaimResult) -> str:
    """The page as Markdown."""
    figures = result.figures
    return "\n".join([*_introduction(result), *_accuracies(figures), *_lengths(figures), *_rates(figures), *_tasks()])


def _introduction(result: ClaimResult) -> Iterator[str]:
    effort, params = Effort(), result.figures["params"]
    sizes = [size for row in params.values() for size in row.values()]
    runs = len(TASKS) * len(FAMILIES) * (len(RATES) + len(SEEDS))
    yield f"""\
# Recall, state tracking, length: eight families, fifteen tasks

Written by `python tools/task_page.py` from the stored figures of `anyformer claims {NAME} --train`; do not edit.

What do eight families of models learn of {len(TASKS)} synthetic tasks within {effort.steps} updates, and
how far beyond the learned length do they generalise? All have {min(sizes):,} to {max(sizes):,} parameters. A task
that a family has not learned here may be learned with more updates, data or layers.

| family | layers |
| --- | --- |
| `transformer` | two layers of 128 channels: attention with 4 heads and rotary positions, then an MLP |
| `window` | the same with attention to the last 16 tokens: both layers together see 30 tokens back |
| `cnn` | convolutions over 5 tokens with dilation 1, 2, 4, 8 in four narrower layers, which see 60 tokens back |
| `rnn`, `lstm`, `s4d`, `mamba2` | this mixer in place of attention, at the width that gives as many parameters |
| `hybrid` | a layer of Mamba (the first version), then one of attention to the last 64 tokens: all of a learned text |

All layers have an MLP behind the mixer, residual connections, and RMS norms in front of both.

Each model trains for {effort.steps} updates of 4,096 tokens on texts of four lengths, a quarter, a half, three quarters
and the whole of L: {effort.texts:,} texts, less the 5% that a study holds out. AdamW (weight decay 0.1, betas 0.9 and
0.95), 2% warm-up, cosine to a tenth, gradients clipped at 1, fp32, weights of deviation 0.02, no dropout. Every family
tries the learning rates {", ".join(f"{rate:g}" for rate in RATES)} by whole runs with a seed that is not judged; the
lowest loss wins. {len(SEEDS)} other seeds then answer the same {effort.test_texts} texts of each length.
{len(SEEDS)} seeds are too few to rank families that are near each other, and {effort.test_texts} texts leave an
error of up to 5 points. {runs} runs, {result.seconds / 60:.0f} minutes on {result.machine}.

![Accuracy of every family on every task](tasks.svg)

What was expected and did not happen, and how it was checked: [experiments.md](experiments.md), "Eight families, fifteen
tasks"."""


def _accuracies(figures: Figures) -> Iterator[str]:
    yield """
## Accuracy at the learned length

Right labels, tags, or symbols of the target (its end included, each after the right symbols before it): the mean of
three seeds in percent, and the lowest and the highest seed where they are more than five points apart. Chance is the
best blind guess. Bold: above the middle between chance and 100, and less than five points behind the best.
"""
    yield from _header("task", "chance", *FAMILIES)
    for task, suite in TASKS.items():
        row = {family: [seed[0] for seed in figures["accuracy"][task][family]] for family in FAMILIES}
        bold_from = max(max(map(fmean, row.values())) - 0.05, suite.middle(1))
        cells = [_cell(values, bold_from) for values in row.values()]
        yield _line(f"`{task}`", f"{100 * suite.chance(1):.0f}", *cells)


def _cell(values: Sequence[float], bold_from: float) -> str:
    mean, least, most = (100 * value for value in (fmean(values), min(values), max(values)))
    spread = f" ({least:.0f}-{most:.0f})" if most - least > 5 else ""
    text = f"{mean:.0f}{spread}"
    return f"**{text}**" if fmean(values) >= bold_from else text


def _lengths(figures: Figures) -> Iterator[str]:
    multiples = ", ".join(map(str, MULTIPLES))
    yield f"""
## How far it reaches

The largest multiple of the learned length L, of {multiples}, up to which the mean accuracy is above
(1 + chance) / 2; a dash if it is below at L. Beside it what theory lets expect.
"""
    yield from _header("task", *FAMILIES, "expected")
    for task, last in reach(figures).items():
        yield _line(f"`{task}`", *(f"x{last[name]}" if last[name] else "-" for name in FAMILIES), EXPECTED[task])
    yield "\nAccuracy at 2 L, 4 L and 8 L, the mean of three seeds in percent (chance in brackets where it differs):\n"
    yield from _header("task", *FAMILIES)
    by_multiple = [accuracies(figures, multiple) for multiple in MULTIPLES[1:]]
    for task, suite in TASKS.items():
        chances = " / ".join(f"{100 * suite.chance(multiple):.0f}" for multiple in MULTIPLES[1:])
        name = f"`{task}`" if len(set(chances.split(" / "))) == 1 else f"`{task}` ({chances})"
        cells = (" / ".join(f"{100 * rows[task][family]:.0f}" for rows in by_multiple) for family in FAMILIES)
        yield _line(name, *cells)


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


def _tasks() -> Iterator[str]:
    yield """
## The tasks

L is the largest size that is learned. Of the tags of `parity` the last one is judged. `anyformer parts KIND` explains
each task and its options.
"""
    yield from _header("task", "L", "other options", "a text of L / 4", "answer")
    for name, suite in TASKS.items():
        options = {key: value for key, value in suite.task.to_dict().items() if key not in (*NO_OPTIONS, suite.size)}
        record = suite.at(suite.trained // 4, 1, 0).record(0)
        answer = " ".join(record.tags) or record.label or record.target
        shown = ", ".join(f"{key} {value}" for key, value in options.items())
        yield _line(f"`{name}`", f"{suite.size} {suite.trained}", shown, f"`{record.text}`", f"`{answer}`")


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
    PAGE.write_text(page(result) + "\n", encoding="utf-8")
    PICTURE.write_bytes(picture(result.figures).bytes("svg"))


if __name__ == "__main__":
    main()
