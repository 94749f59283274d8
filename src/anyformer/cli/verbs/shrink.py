"""`anyformer shrink`: a smaller run from a run: pruned, fine-tuned, measured."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from anyformer.cli.output.screen import Device, Overrides, RunFolder, Screen, verb

Prune = Annotated[
    list[str] | None,
    Option(
        metavar="WHAT=SHARE",
        help="Remove this share of heads, neurons or layers, or set weights to zero; may be repeated. Several shares "
        "(weights=0.1,0.5,0.9) give a curve and write no run.",
    ),
]
By = Annotated[
    str, Option(metavar="NAME", help="How to rank what is pruned: magnitude, taylor, leave_one_out or random.")
]
Scope = Annotated[Literal["model", "layer", "role"], Option(help="Which single weights are ranked against each other.")]
Steps = Annotated[int, Option(min=0, help="Train so many updates on the run's own data afterwards.")]
Rounds = Annotated[int, Option(min=1, help="Prune single weights in so many rounds, with training in between.")]
Control = Annotated[bool, Option(help="Prune the same share at random too, into OUT-random, for comparison.")]
Out = Annotated[
    Path | None,
    Option(metavar="FOLDER", help="The new run folder; default: RUN-small. Of a curve: a picture, .svg or .png."),
]
Limit = Annotated[int | None, Option(min=1, help="Measure the scores on the first N held-out records only.")]


@verb(
    "anyformer shrink runs/small --prune heads=0.5",
    "anyformer shrink runs/small --prune heads=0.5 --prune neurons=0.5 --by taylor --steps 200 --out runs/half",
    "anyformer shrink runs/small --prune weights=0.9 --rounds 3 --steps 300 optimizer.lr=3e-4",
    "anyformer shrink runs/small --prune weights=0.1,0.5,0.9 --out curve.svg",
)
def shrink(
    run: RunFolder,
    overrides: Overrides = None,
    prune: Prune = None,
    by: By = "magnitude",
    scope: Scope = "model",
    steps: Steps = 0,
    rounds: Rounds = 1,
    control: Control = True,
    out: Out = None,
    limit: Limit = None,
    seed: Annotated[int, Option(min=0, help="Seed of a random choice.")] = 0,
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Make a smaller run from a run. Pruning removes heads, neurons or layers for good, or sets weights to zero, and
    the rest can be trained again. Ends with one table: size, cost, speed here and scores with intervals, before and
    after."""
    from anyformer.cli.output import run_options, shrinking
    from anyformer.shrink.shrinking import PruneSettings

    opened = run_options.open_run(run)
    settings = PruneSettings(
        amounts=prune or (), by=by, scope=scope, steps=steps, rounds=rounds, seed=seed, overrides=overrides or ()
    )
    if curves := [text for text in settings.amounts if "," in text]:
        shrinking.show_curve(opened, curves[0], settings, out, limit, screen)
        return
    folder = out or run.with_name(f"{run.absolute().name}-small")
    runs = shrinking.pruned_runs(opened, settings, folder, control, screen)
    shrinking.report_runs(runs, shrinking.result_of(runs, folder), limit, device, screen)
