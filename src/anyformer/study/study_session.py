"""What the runs of one call of `compare` or `scale` share: the cache, the listener, and the end of the time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anyformer.core.readable_numbers import counted
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.errors import SpecError
from anyformer.study.judging import judged_split
from anyformer.study.planning import plan
from anyformer.study.running import Outcome
from anyformer.study.study import Study
from anyformer.study.study_folder import ARMS, LATER, PLAN, STUDY, StudyFolder
from anyformer.study.study_listener import Listener
from anyformer.study.study_record import REGISTERED, timed_session
from anyformer.study.study_results import Results
from anyformer.study.study_schedule import StudySchedule
from anyformer.study.study_yardsticks import measured_lines
from anyformer.study.workers import jobs_of, threads_of, workers_for
from anyformer.training.recipes.resolve import data_of
from anyformer.training.runs.run_folder import LOCK
from anyformer.training.runs.session import remarks_on_data, remarks_on_model


@dataclass(frozen=True)
class StudySession:
    """What the runs of one call of `compare` or `scale` share."""

    cache: Path | None
    listener: Listener
    deadline: float | None
    mentioned: set[str] = field(default_factory=set)

    def mention(self, remarks: Iterable[str]) -> None:
        """Logs remarks, each once: controls and budgets have the same data."""
        for remark in remarks:
            if remark not in self.mentioned:
                self.listener.log(remark)
            self.mentioned.add(remark)

    def results(self, path: Path, study: Study) -> Results:
        """Trains the runs of a study that are not finished, after those of its controls, measures its yardsticks, and
        reads the results."""
        folder = self.controls(path, study)
        results = Results(folder, self.train(path, [folder]))
        self.measure(results)
        return results

    def measure(self, results: Results) -> None:
        """Measures the yardsticks of a study, unless that is done."""
        if results.judged is not None and (run := results.representative) is not None:
            self.listener.log("measuring yardsticks")
            measured_lines(results.folder.path, run, results.judged.split, self.cache)

    def controls(self, path: Path, study: Study) -> StudyFolder:
        """Trains the runs of the controls that are not finished, all together; they need no yardsticks."""
        folder = self.opened(path, study, len(study.arms))
        if not study.controls:
            return folder
        self.listener.planned([folder])
        together = sum(len(control.arms) for control in study.controls.values())
        folders = []
        for name, control in study.controls.items():
            self.listener.log(f"control {name}: {study.spec.controls[name].expected}")
            folder.control(name).mkdir(parents=True, exist_ok=True)
            folders.append(self.opened(folder.control(name), control, together))
        self.train(path, folders)
        return folder

    def train(self, path: Path, folders: Sequence[StudyFolder]) -> list[Outcome]:
        """Tries learning rates and trains every arm with every seed, in all of these studies at the same time. `path`:
        the folder of the whole study."""
        self.listener.planned(folders)
        schedule = StudySchedule(folders, self.cache)
        if not schedule.is_open:
            return []
        spec, arms = folders[0].spec, sum(len(folder.arms) for folder in folders)
        workers = workers_for(spec, path, arms, self.listener.moved, self.deadline)
        try:
            with timed_session(path, jobs_of(spec, arms)):
                workers.run(schedule)
        finally:
            workers.close()
        self.listener.trained()
        return schedule.outcomes

    def opened(self, path: Path, study: Study, together: int) -> StudyFolder:
        """The folder of a study that is resumed, or a new folder with its plan. `together`: arms that share the CPU."""
        listener = self.listener
        self.mention(["reading the data"])
        data = relocated(data_of(next(iter(study.arms.values()))), StudyFolder(path).began_in)
        prepared = prepared_for(data, self.cache, listener.log)
        judged_split(prepared, study.spec.metric)
        if (path / STUDY).is_file():
            folder = StudyFolder(path)
            folder.refuse_another(study)
            folder.refuse_other_data(prepared.manifest.fingerprint)
            folder.write(study)
            return StudyFolder(path)
        if any(item.name not in (LOCK, ARMS, PLAN, LATER, REGISTERED, f".{STUDY}") for item in path.iterdir()):
            raise SpecError(
                f"{path}: exists already and is not a study folder. Use another folder: out=NAME (--out NAME)."
            )
        listener.log(f"sizing {counted(len(study.arms), 'arms')}")
        arms = plan(study, prepared)
        for arm in arms:
            self.mention(remarks_on_model(arm.recipe.model))
        self.mention(remarks_on_data(prepared, arms[0].recipe))
        threads = threads_of(study.spec, together)
        return StudyFolder.create(path, study, arms, prepared.manifest.fingerprint, threads)
