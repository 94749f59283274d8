"""`anyformer report`: writes the report of a run or a study."""

from pathlib import Path
from typing import Annotated

import typer

from anyformer.cli.output.screen import Screen, verb


@verb(
    "anyformer report runs/small",
    "anyformer report runs/small --out notes/small.md",
    "anyformer report runs/small --json",
)
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run or a study, finished or not.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write, .html or .md (Markdown); default: RUN/report.html."),
    ] = None,
    *,
    screen: Screen,
) -> None:
    """Write a page about a run or a study: curves, samples, cost, data, configuration. The page works offline."""
    from anyformer.cli.output.report_pages import page_of
    from anyformer.errors import SpecError

    page = page_of(run)
    if out is not None and out.suffix not in (".html", ".htm", ".md"):
        raise SpecError(f"--out {out}: the file name must end in .html or .md.")
    try:
        path = None if screen.json and out is None else page.write(out)
    except OSError as error:
        raise SpecError(f"{out or run}: {error.strerror}. Name another place: --out FILE.") from None
    if screen.json:
        screen.data(page.facts())
    elif screen.quiet:
        screen.lines(str(path))
    else:
        screen.lines(page.sentence)
        screen.lines(f"written: {path}")
