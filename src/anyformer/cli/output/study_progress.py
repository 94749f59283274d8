"""Progress of a study on the terminal: sizes of its arms, finished runs, then the verdict and a table."""

import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import Screen, cache_folder, plain_table, visible
from anyformer.core.discovery import program
from anyformer.core.readable_numbers import clock, counted, human, human_flops
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.reporting.study_report import write_study_report
from anyformer.study.planning import Arm, plan
from anyformer.study.study import Study, read_study
from anyformer.study.study_cost import Pace, announcement, price_of, total
from anyformer.study.study_folder import STUDY, StudyFolder, is_ladder, whole_study
from anyformer.study.study_listener import REFRESH_S, FinishedRuns, Listener, opening
from anyformer.study.study_pack import is_pack, refuse_other_place, unpack, write_pack
from anyformer.study.study_results import Results, Row, narrow, rows
from anyformer.training.recipes.resolve import data_of
from anyformer.training.runs.session import RUNS

WIDE = 150


class StudyProgress(Listener):
    """Listener that prints the progress and the result of a study."""

    def __init__(self, screen: Screen, pack: Path | None):
        self.screen, self.pack = screen, pack
        if pack is not None:
            refuse_other_place(pack)
        self.console = Console(highlight=False, markup=False, stderr=screen.json)
        self.display: LiveDisplay | None = None
        self.runs = FinishedRuns(())
        self.began, self.looked = time.monotonic(), 0.0
        self.pace: Pace | None = None
        self.predicted = False

    def __enter__(self) -> "StudyProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.display is not None:
            self.display.stop()

    def log(self, text: str) -> None:
        if not self.screen.quiet:
            self.console.print(text, soft_wrap=True)

    def planned(self, folders: Sequence[StudyFolder]) -> None:
        self.runs, self.pace, self.predicted = FinishedRuns(folders), Pace(folders), False
        self.runs.look()
        self.began = time.monotonic()
        for folder in folders:
            self.log(opening(folder, self.runs))
            if not self.screen.quiet and not is_ladder(whole_study(folder.path)):
                self.console.print(sizes(folder.arms, folder.spec.match))
        if self.console.is_terminal and not self.screen.quiet and self.display is None:
            self.display = LiveDisplay(console=self.console, refresh_per_second=4, transient=True)
            self.display.start()

    def ended(self, path: Path) -> None:
        if self.pack is not None:
            write_pack(path, self.pack)
            self.log(f"packed, without weights: {self.pack}")

    def moved(self) -> None:
        if time.monotonic() - self.looked < REFRESH_S:
            return
        self.trained()
        if not self.predicted or self.display is not None:
            left = self.pace.seconds_left(self.runs.done) if self.pace else None
            if left is not None and not self.predicted:
                self.predicted = True
                self.log(f"about {clock(left)} left, by the speed of the first trials")
            if self.display is not None:
                end = "" if left is None else f", about {clock(left)} left"
                line = (
                    f"{len(self.runs.done)} of {counted(self.runs.total, 'runs')}, "
                    f"{clock(time.monotonic() - self.began)}{end}"
                )
                self.display.update(Text(line, no_wrap=True, overflow="ellipsis"))
        self.looked = time.monotonic()

    def trained(self) -> None:
        for line in self.runs.new_lines():
            self.log(visible(line))

    def finish(self, results: Results) -> None:
        """Writes the report and prints the verdict, the table, failed runs and the path of the report."""
        page = write_study_report(results)
        if self.screen.json:
            self.screen.data(results.to_dict())
            return
        self.console.print()
        self.console.print(Text(visible(results.conclusion), style="bold"))
        for remark in results.remarks:
            self.console.print(Text(f"- {visible(remark)}"))
        if self.screen.quiet:
            return
        self.console.print()
        self.console.print(table(results, self.console.width))
        if results.curves is not None:
            self.console.print()
            self.console.print(columns(results.curves.rows()))
        for line in results.yardsticks:
            self.log(visible(line.sentence))
        for failure in _failures(results):
            self.log(failure)
        self.log(f"\nreport: {page}")
        for command, why in _next(results):
            self.log(f"next: {program()} {command}   ({why})")


def _failures(results: Results) -> Iterator[str]:
    """A line for all runs of an arm that were lost for the same reason."""
    for arm in results.arms:
        for first, *others in arm.alike:
            more = f" and {len(others)} more of this arm" if others else ""
            yield f"{first.folder}{more}: {first.state}{': ' * bool(first.why)}{visible(first.why)}"


def sizes(arms: Sequence[Arm], match: str) -> Table:
    """A table with the cost of each arm and the values that matching changed."""
    sizes_table = plain_table()
    sizes_table.add_column("arm", no_wrap=True)
    matched = "flops" if match == "none" else match
    for name in ("params", "tokens", "training", f"{matched} off"):
        sizes_table.add_column(name, justify="right", no_wrap=True)
    sizes_table.add_column("changed to match", overflow="fold")
    for arm in arms:
        changes = ", ".join(f"{key} {before} -> {after}" for key, (before, after) in arm.changes.items())
        tokens = (arm.recipe.train.steps or 0) * arm.recipe.train.batch_tokens
        cells = [human(arm.budgets.params), human(tokens) if tokens else "by the clock", human_flops(arm.train_flops)]
        cells.append(f"{100 * arm.off:+.1f} %")
        sizes_table.add_row(arm.name, *cells, Text(changes or "nothing", style="dim"))
    return sizes_table


def table(results: Results, width: int) -> Table:
    """The table of the report, for a terminal of `width` columns."""
    return columns(rows(results) if width >= WIDE else [narrow(row, results.metric) for row in rows(results)])


def columns(shown: Sequence[Row]) -> Table:
    """A table with the headings of its first row."""
    results_table = plain_table(gap=1)
    for place, name in enumerate(shown[0]):
        results_table.add_column(name, justify="right" if place else "left", no_wrap=place == 0)
    for row in shown:
        results_table.add_row(*map(Text, row.values()))
    return results_table


def _next(results: Results) -> Iterator[tuple[str, str]]:
    """Suggested next commands, each with an explanation."""
    folder = shlex.quote(str(results.path))
    yield results.next_words, "add seeds; finished runs are reused"
    if (run := results.representative) is not None:
        yield f'view {shlex.quote(str(run))} "some text"', f"look inside a model of {results.best.name}"
    yield f"compare {folder}/study.toml --out {folder}-again", "repeat the whole study"


def rehearse(screen: Screen, target: str, words: Sequence[str]) -> None:
    """Prints the arms that `compare` would train; `target` may be a study folder or a pack, too."""
    with tempfile.TemporaryDirectory() as folder:
        if is_pack(Path(target)):
            target = str(unpack(Path(target), Path(folder) / "study", RUNS))
        if (Path(target) / STUDY).is_file():
            target = str(Path(target) / STUDY)
        _rehearse(screen, target, words)


def _rehearse(screen: Screen, target: str, words: Sequence[str]) -> None:
    study = read_study(target, words)
    budgets = study.spec.budgets
    studies = [read_study(target, [*words, "study.budgets=[]", f"train.steps={steps}"]) for steps in budgets] or [study]
    began_in = StudyFolder(Path(target).parent).began_in if Path(target).name == STUDY else None
    planned = [_planned(one, began_in) for one in studies]
    arms = planned[-1]
    if screen.json:
        screen.data([{"name": arm.name, "recipe": arm.recipe.to_dict(), "off": arm.off} for arm in arms])
        return
    screen.show(sizes(arms, study.spec.match))
    parts = [announcement(at_budget, study.spec) for at_budget in planned]
    if budgets:
        parts = [f"{counted(steps, 'steps')}: {part}" for steps, part in zip(budgets, parts, strict=True)]
    prices = [price_of(at_budget, study.spec) for at_budget in planned]
    for name, control in study.controls.items():
        prices.append(price_of(_planned(control, began_in), control.spec))
        parts.append(f"control {name}: {study.spec.controls[name].expected}: {prices[-1]}")
    if len(parts) == 1:
        screen.lines(f"would train {parts[0]}. Nothing was done.")
    else:
        listed = "".join(f"\n  {part}" for part in parts)
        screen.lines(f"would train{listed}\nin all {total(prices)}. Nothing was done.")


def _planned(study: Study, began_in: str | None) -> tuple[Arm, ...]:
    data = relocated(data_of(next(iter(study.arms.values()))), began_in)
    return plan(study, prepared_for(data, cache_folder()))
