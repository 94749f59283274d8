"""`anyformer compare`: several architectures at a matched budget, over seeds, with a verdict."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from anyformer.cli.output.screen import Overrides, Screen, example, verb

Compared = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A recipe or study (.toml), a preset's name, a path to data, a built-in source, or a study's folder.",
    ),
]


def register(app: typer.Typer) -> None:
    foot = example(
        "anyformer compare notes.txt --arms transformer,lstm,cnn,mamba",
        "anyformer compare small --arms transformer,lstm --match flops --seeds 3 train.steps=200",
        "anyformer compare recipes/modifications.toml",
        "anyformer compare runs/small-study --seeds 12",
    )
    app.command("compare", epilog=foot)(run_study)


@verb
def run_study(
    target: Compared,
    overrides: Overrides = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="A,B,..", help="What is compared, the baseline first; base: the target itself."),
    ] = None,
    match: Annotated[
        Literal["params", "flops", "time", "state", "none"] | None,
        typer.Option(help="What all arms have as much of; params if not given."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each arm; 6 if not given.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The study's folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Size the arms, show their costs, and train none.")
    ] = False,
    *,
    screen: Screen,
) -> None:
    """Compare architectures: the same data, budget and tuning for each, paired by seed, and an honest verdict.

    Ctrl-C saves and stops; the same command goes on where it was.
    """
    from anyformer.cli.output.study_progress import StudyProgress, cache_folder, rehearse
    from anyformer.study import compare

    study_settings = [
        f"study.{key}={value}" for key, value in (("match", match), ("seeds", seeds)) if value is not None
    ]
    study_settings += [f"study.arms={[name.strip() for name in arms.split(',')]}"] if arms else []
    words = [*(overrides or ()), *study_settings]
    if dry_run:
        rehearse(screen, target, words)
        return
    with StudyProgress(screen) as live:
        results = compare(target, *words, out=out, cache=cache_folder(), listener=live)
    live.finish(results)
