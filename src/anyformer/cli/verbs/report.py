"""`anyformer report`: writes the report of a run or a study."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from anyformer.cli.output.screen import Screen, verb


@verb(
    "anyformer report runs/small",
    "anyformer report runs/small --out notes/small.md",
    "anyformer report runs/small --json",
    "anyformer report study.tar.gz",
    panel="Look inside",
)
def report(
    run: Annotated[
        Path, Argument(metavar="RUN", help="The folder of a run, a study or a ladder, finished or not, or a pack.")
    ],
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="The file to write, .html or .md (Markdown); default: RUN/report.html."),
    ] = None,
    *,
    screen: Screen,
) -> None:
    """Write a page about a run or a study: curves, samples, cost.

    The page works offline.
    """
    from anyformer.cli.output.run_options import open_run
    from anyformer.errors import SpecError
    from anyformer.reporting.run_facts import RunFacts
    from anyformer.reporting.run_report import write_report
    from anyformer.reporting.scale_report import facts as scale_facts
    from anyformer.reporting.scale_report import lines, write_scale_report
    from anyformer.reporting.study_report import write_study_report
    from anyformer.study.budget_curves import results_of
    from anyformer.study.ladder_results import Scaled
    from anyformer.study.study_folder import STUDY, is_ladder
    from anyformer.study.study_pack import is_pack, unpack
    from anyformer.training.runs.session import RUNS

    if out is not None and out.suffix not in (".html", ".htm", ".md"):
        raise SpecError(f"--out {out}: the file name must end in .html or .md.")
    write: Callable[[Path | None], Path]
    to_dict: Callable[[], dict[str, Any]]
    if is_pack(run):
        run = unpack(run, None, RUNS)
    if is_ladder(run):
        scaled = Scaled.open(run)
        sentence, to_dict = "\n- ".join(lines(scaled)), partial(scale_facts, scaled)
        write = partial(write_scale_report, scaled, None)
    elif (run / STUDY).is_file():
        results = results_of(run)
        sentence = "\n- ".join([results.conclusion, *results.remarks])
        to_dict, write = results.to_dict, partial(write_study_report, results)
    else:
        facts = RunFacts.of(open_run(run).folder)
        sentence, to_dict, write = facts.sentence, facts.to_dict, partial(write_report, run)
    try:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
        path = None if screen.json and out is None else write(out)
    except OSError as error:
        raise SpecError(f"{out or run}: {error.strerror}. Name another place: --out FILE.") from None
    if screen.json:
        screen.data(to_dict())
        return
    if not screen.quiet:
        screen.lines(sentence)
    if path is not None:
        screen.written(path)
