"""`anyformer merge`: adds the low-rank updates of a run to its weights and writes an ordinary run."""

from pathlib import Path
from typing import Annotated

from typer import Option

from anyformer.cli.output.screen import RunFolder, Screen, verb


@verb(
    "anyformer merge runs/tuned --out runs/merged",
    'anyformer generate runs/merged "Return the"',
    panel="Exchange and shrink",
)
def merge(
    run: RunFolder,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="The new run folder; default: RUN-merged.")] = None,
    *,
    screen: Screen,
) -> None:
    """Merge the low-rank updates of tune=lora into the weights.

    The new run has the same outputs, without the updates.
    """
    from anyformer.cli.output.run_options import open_run
    from anyformer.training.runs.merging import merge_run

    folder = open_run(run).folder
    result = merge_run(folder, out or folder.with_name(f"{folder.name}-merged"))
    if screen.json:
        screen.data(
            {
                "run": str(result.folder),
                "step": result.step,
                "params_before": result.params_before,
                "params": result.params,
                "largest_difference": result.difference,
            }
        )
        return
    params = f"{result.params_before:,} parameters before, {result.params:,} now"
    screen.lines(f"merged step {result.step:,} of {folder} into {result.folder}: {params}.")
    screen.lines(f"largest difference of the outputs {result.difference:.2g}.")
