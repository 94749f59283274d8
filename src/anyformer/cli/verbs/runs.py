"""`anyformer runs`: lists run folders with their state."""

import shutil
from pathlib import Path
from typing import Annotated

from typer import Argument

from anyformer.cli.output.runs_table import find, left_out, studies, table
from anyformer.cli.output.screen import Screen, note_left_out, verb
from anyformer.errors import SpecError

USUAL = Path("runs")


@verb("anyformer runs", "anyformer runs elsewhere --json", panel="Look inside")
def runs(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The folder to search, including its subfolders.")] = USUAL,
    *,
    screen: Screen,
) -> None:
    """List all runs, newest first, with their losses.

    Says for each whether it is running, complete or interrupted.
    """
    if not folder.is_dir() and folder != USUAL:
        raise SpecError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'there is no such folder'}.")
    runs = find(folder)
    if screen.json:
        screen.data(runs)
    elif screen.quiet:
        screen.lines("\n".join(run["run"] for run in runs))
    elif not runs:
        screen.lines(f"no runs in {folder} yet. Start one: anyformer train small")
    else:
        shown = table(runs, folder, shutil.get_terminal_size().columns)
        screen.show(shown)
        note_left_out(screen, left_out(shown))
        screen.lines("\n".join(studies(runs, folder)))
