"""`anyformer scale`: trains a ladder of sizes, fits scaling laws, and predicts the loss of the largest size."""

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anyformer.cli.output.screen import Overrides, Screen, cache_folder, note, verb
from anyformer.core.readable_numbers import human, human_flops

Recipe = Annotated[
    str,
    Argument(metavar="TARGET", help="A recipe (.toml), the name of a preset or a path to data: the largest size."),
]


@verb(
    "anyformer scale small train.steps=300",
    "anyformer scale notes.txt --rungs 7 --budgets 3 --minutes 60 --out runs/ladder",
    "anyformer scale small --rungs 6 --dry-run",
    panel="Compare and predict",
)
def scale(
    target: Recipe,
    overrides: Overrides = None,
    rungs: Annotated[int, Option(min=2, help="Number of sizes; the recipe is the largest.")] = 6,
    ratio: Annotated[float, Option(help="How many times the weights of the one below each size has, about.")] = 2.0,
    budgets: Annotated[int, Option(min=1, max=8, help="Number of training lengths: full, half, a quarter, ...")] = 1,
    minutes: Annotated[
        float | None, Option(min=0, help="Stop after so many minutes, with exit code 75; the same command goes on.")
    ] = None,
    rate: Annotated[
        float | None, Option(help="Peak FLOP/s of a device, to report compute as time x devices x rate.")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="The folder for runs and page; default: runs/NAME-scale.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the sizes and their costs, and train nothing.")] = False,
    *,
    screen: Screen,
) -> None:
    """Train smaller sizes of a recipe and predict its loss.

    The full recipe is trained last and compared with the prediction. Ctrl-C saves and stops; the same command resumes.
    """
    from anyformer.training.recipes.quick import recipe_mistakes, refuse_mistakes

    refuse_mistakes(target, overrides or (), recipe_mistakes)
    from anyformer.errors import SpecError
    from anyformer.reporting.scale_report import facts, lines, write_scale_report
    from anyformer.study.ladder import planned, scale, too_few

    if rate is not None and not 0 < rate < math.inf:
        raise SpecError(f"--rate {rate:g}: the FLOP/s of a device are a number above 0, such as 1e12.")
    if remark := too_few(rungs, budgets):
        note(screen, remark)
    words = overrides or []
    if dry_run:
        steps = planned(target, *words, rungs=rungs, ratio=ratio, budgets=budgets, cache=cache_folder())[1]
        if screen.json:
            keys = ("name", "weights", "tokens", "flops")
            screen.data([{key: getattr(rung, key) for key in keys} for rung in steps])
            return
        for rung in steps:
            size = f"{human(rung.weights):>8} weights  {human(rung.tokens):>8} tokens  {human_flops(rung.flops)}"
            plan = "" if not rung.top else "  trained, not predicted" if remark else "  predicted, then trained"
            screen.lines(f"{rung.name:<16} {size}{plan}")
        return
    tell = screen.lines if not (screen.json or screen.quiet) else lambda text: None
    scaled = scale(
        target, *words, rungs=rungs, ratio=ratio, budgets=budgets, minutes=minutes, out=out, cache=cache_folder(),
        tell=tell,
    )  # fmt: skip
    page = write_scale_report(scaled, rate)
    if screen.json:
        screen.data(facts(scaled, rate))
        return
    for line in lines(scaled, rate):
        screen.lines(line)
    screen.written(page)
