"""The reports that `anyformer report` can write: of a run or of a study."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_report import write_report
from anyformer.reporting.study_report import write_study_report
from anyformer.study.study_folder import STUDY, StudyFolder
from anyformer.study.study_results import Results


class ReportPage(NamedTuple):
    """A report as one sentence, as JSON data, and as a file."""

    sentence: str
    facts: Callable[[], dict[str, Any]]
    write: Callable[[Path | None], Path]


def page_of(folder: Path) -> ReportPage:
    """The report of a study folder or a run folder."""
    if (folder / STUDY).is_file():
        results = Results(StudyFolder(folder))
        return ReportPage(results.verdict, results.to_dict, partial(write_study_report, results))
    facts = RunFacts.of(folder)
    return ReportPage(facts.sentence, facts.to_dict, partial(write_report, folder))
