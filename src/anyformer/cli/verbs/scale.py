"""`anyformer scale`: trains a ladder of sizes, fits scaling laws, and predicts the loss of the largest size."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anyformer.cli.output.screen import Overrides, Screen, cache_folder, note, verb
from anyformer.core.readable_numbers import counted, human, human_flops

Recipe = Annotated[
    str,
    Argument(
        metavar="TARGET",
        help="The largest size: a recipe (.toml), the name of a preset or a path to data; or the folder of a ladder, "
        "or its pack (.tar.gz).",
    ),
]


@verb(
    "anyformer scale small train.steps=300",
    "anyformer scale notes.txt --rungs 7 --budgets 3 --minutes 60 --out runs/ladder",
    "anyformer scale recipes/ladder.toml --seeds 3 study.ladder.leap=5",
    "anyformer scale small --rungs 6 --dry-run",
    panel="Compare and predict",
)
def scale(
    target: Recipe,
    overrides: Overrides = None,
    rungs: Annotated[int | None, Option(min=2, help="Number of sizes; the recipe is the largest. Default: 6.")] = None,
    ratio: Annotated[
        float | None, Option(help="How many times the parameters of the one below each size has; default: 2.")
    ] = None,
    budgets: Annotated[
        int | None,
        Option(min=1, max=8, help="Number of training lengths of the smaller sizes: full, half, a quarter, ..."),
    ] = None,
    arms: Annotated[
        str | None, Option(metavar="A,B,..", help="Architectures to compare, equal in parameters at the largest size.")
    ] = None,
    seeds: Annotated[int | None, Option(min=1, help="Number of runs of each size; default: 1.")] = None,
    minutes: Annotated[
        float | None, Option(min=0, help="Stop after so many minutes, with exit code 75; the same command goes on.")
    ] = None,
    rate: Annotated[
        float | None, Option(help="Peak FLOP/s of a device, to report compute as time x devices x rate.")
    ] = None,
    pack: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the ladder without weights to a .tar.gz file, a TARGET on another machine."),
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
    from anyformer.training.recipes.quick import refuse_mistakes, study_mistakes

    _check_rate(rate)
    names = [name.strip() for name in arms.split(",")] if arms else None
    options = {
        "ladder.rungs": rungs, "ladder.ratio": ratio, "ladder.budgets": budgets,
        "arms": names, "seeds": seeds, "minutes": minutes,
    }  # fmt: skip
    words = [*(overrides or ()), *(f"study.{key}={value}" for key, value in options.items() if value is not None)]
    refuse_mistakes(target, words, study_mistakes)
    from anyformer.cli.output.study_progress import StudyProgress
    from anyformer.reporting.scale_report import facts, lines, write_scale_report
    from anyformer.study.ladder import scale

    if dry_run:
        return rehearse(screen, target, words)
    with StudyProgress(screen, pack) as live:
        scaled = scale(target, *words, out=out, cache=cache_folder(), listener=live)
    page = write_scale_report(scaled, rate)
    if screen.json:
        return screen.data(facts(scaled, rate))
    for line in lines(scaled, rate):
        screen.lines(line)
    screen.written(page)


def _check_rate(rate: float | None) -> None:
    from anyformer.errors import SpecError

    if rate is not None and not 0 < rate < math.inf:
        raise SpecError(f"--rate {rate:g}: the FLOP/s of a device are a number above 0, such as 1e12.")


def rehearse(screen: Screen, target: str, words: Sequence[str]) -> None:
    """Prints the sizes that `scale` would train, and what they cost; `target` may be the folder of a ladder, too."""
    from anyformer.study.ladder import ladder_study, planned
    from anyformer.study.rungs import too_few
    from anyformer.study.study_folder import StudyFolder
    from anyformer.study.study_request import StudyRequest

    request = StudyRequest.of(target, words, {"arms": []}, None, {}, None, None)
    study, folder = ladder_study(request), request.folder
    assert study.spec.ladder is not None
    if remark := too_few(study.spec.ladder):
        note(screen, remark)
    rungs = planned(study, cache_folder(), StudyFolder(folder).began_in if folder else None)
    if screen.json:
        keys = ("name", "arm", "weights", "tokens", "flops")
        screen.data([{key: getattr(rung, key) for key in keys} for rung in rungs])
        return
    for rung in rungs:
        plan = "" if not rung.top else "  trained, not predicted" if remark else "  predicted, then trained"
        screen.lines(f"{rung}{plan}")
    seeds = study.spec.seeds
    tokens, flops = (seeds * sum(getattr(rung, key) for rung in rungs) for key in ("tokens", "flops"))
    runs = f"{counted(len(rungs), 'rungs')} x {counted(seeds, 'seeds')}"
    screen.lines(f"would train {runs}: {human(tokens)} tokens, {human_flops(flops)}. Nothing was done.")
