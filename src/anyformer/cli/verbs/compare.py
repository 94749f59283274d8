"""`anyformer compare`: compares several architectures at a matched budget, over seeds, with a verdict."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from anyformer.cli.output.screen import Overrides, Screen, cache_folder, verb

Compared = Annotated[
    str,
    Argument(
        metavar="TARGET",
        help="A recipe or study (.toml), the name of a preset, a path to data, a built-in source, a study folder, or a "
        "pack (.tar.gz).",
    ),
]


@verb(
    "anyformer compare notes.txt --arms transformer,lstm,cnn,mamba",
    "anyformer compare small --arms transformer,lstm --match flops --seeds 3 train.steps=200",
    "anyformer compare recipes/modifications.toml",
    "anyformer compare runs/small-study --seeds 12 --minutes 9 --pack study.tar.gz",
    panel="Compare and predict",
)
def compare(
    target: Compared,
    overrides: Overrides = None,
    arms: Annotated[
        str | None,
        Option(metavar="A,B,..", help="The architectures to compare, the baseline first; base is the target itself."),
    ] = None,
    match: Annotated[
        Literal["params", "flops", "time", "state", "none"] | None,
        Option(help="The quantity that is equal for all arms; default: params."),
    ] = None,
    seeds: Annotated[int | None, Option(min=1, help="Number of runs of each arm; default: 8.")] = None,
    minutes: Annotated[
        float | None, Option(min=0, help="Stop after so many minutes, with exit code 75; the same command goes on.")
    ] = None,
    pack: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the study without weights to a .tar.gz file, a TARGET on another machine."),
    ] = None,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="The study folder; default: runs/NAME-study.")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the sizes and costs of the arms, and train nothing.")
    ] = False,
    *,
    screen: Screen,
) -> None:
    """Compare architectures with the same data, budget and tuning.

    The runs are paired by seed, and the differences are tested. Ctrl-C saves and stops; the same command resumes.
    """
    from anyformer.training.recipes.quick import refuse_mistakes, study_mistakes

    names = [name.strip() for name in arms.split(",")] if arms else None
    options = {"match": match, "seeds": seeds, "minutes": minutes, "arms": names}
    words = [*(overrides or ()), *(f"study.{key}={value}" for key, value in options.items() if value is not None)]
    refuse_mistakes(target, words, study_mistakes)
    from anyformer.cli.output.study_progress import StudyProgress, rehearse
    from anyformer.study import compare

    if dry_run:
        rehearse(screen, target, words)
        return
    with StudyProgress(screen, pack) as live:
        results = compare(target, *words, out=out, cache=cache_folder(), listener=live)
    live.finish(results)
