"""`anyformer shrink`: a smaller run from a run: pruned, quantised, averaged or distilled, then measured."""

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
Control = Annotated[
    bool, Option(help="For comparison: prune at random too (OUT-random), or train the student alone (OUT-alone).")
]
Out = Annotated[
    Path | None,
    Option(metavar="FOLDER", help="The new run folder; default: RUN-small. Of a curve: a picture, .svg or .png."),
]
Limit = Annotated[int | None, Option(min=1, help="Measure the scores on the first N held-out records only.")]


Quantise = Annotated[
    Literal["int8", "weights"] | None,
    Option(help="int8 weights, with int8 input of every matrix (int8) or with float input (weights)."),
]
Average = Annotated[
    list[str] | None,
    Option(metavar="N|RUN", help="The mean of the last N checkpoints, or with another run; may be repeated for runs."),
]
Distil = Annotated[
    str | None,
    Option(metavar="PRESET", help="Train this preset with the run as its teacher; same: the run's model, changed by "
                                  "KEY=VALUE."),
]  # fmt: skip


@verb(
    "anyformer shrink runs/small --prune heads=0.5",
    "anyformer shrink runs/small --prune heads=0.5 --prune neurons=0.5 --by taylor --steps 200 --out runs/half",
    "anyformer shrink runs/small --prune weights=0.9 --rounds 3 --steps 300 optimizer.lr=3e-4",
    "anyformer shrink runs/small --prune weights=0.1,0.5,0.9 --out curve.svg",
    "anyformer shrink runs/small --quantise int8",
    "anyformer shrink runs/small --average 5",
    "anyformer shrink runs/small --distil same model.stack.depth=2",
    panel="Exchange and shrink",
)
def shrink(
    run: RunFolder,
    overrides: Overrides = None,
    prune: Prune = None,
    quantise: Quantise = None,
    average: Average = None,
    distil: Distil = None,
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
    """Make a smaller run: prune, quantise, average or distil.

    Prunes heads, neurons, layers or weights. Ends with one table: size, cost, speed here and scores with intervals,
    before and after.
    """
    from anyformer.cli.output import run_options, shrink_screen
    from anyformer.errors import SpecError
    from anyformer.shrink.distilling import StudentSettings
    from anyformer.shrink.shrinking import PruneSettings

    ways = {"--prune": prune, "--quantise": quantise, "--average": average, "--distil": distil}
    if len(chosen := [name for name, value in ways.items() if value]) != 1:
        listed = " and ".join(chosen) or "no way"
        raise SpecError(
            f"shrink: {listed} to make it smaller. Choose one of {', '.join(ways)}, then go on with the result."
        )
    opened, words = run_options.open_run(run), overrides or []
    folder = out or run.with_name(f"{run.absolute().name}-small")
    if words and (quantise or average):
        raise SpecError(f"{words[0]}: {chosen[0]} trains nothing, so it takes no settings.")
    if quantise:
        runs = shrink_screen.quantised_runs(opened, quantise, folder)
    elif average:
        runs = shrink_screen.averaged_runs(opened, average, folder)
    elif distil:
        student = StudentSettings(model=distil, steps=steps, overrides=words)
        runs = shrink_screen.distilled_runs(opened, student, folder, control, screen)
    else:
        settings = PruneSettings(
            amounts=prune or (), by=by, scope=scope, steps=steps, rounds=rounds, seed=seed, overrides=words
        )
        if curves := [text for text in settings.amounts if "," in text]:
            shrink_screen.show_curve(opened, curves[0], settings, out, limit, screen)
            return
        runs = shrink_screen.pruned_runs(opened, settings, folder, control, screen)
    shrink_screen.report_runs(runs, shrink_screen.result_of(runs, folder), limit, device, screen)
