"""A metric as a value: it measures some scores of a trained model. A class with a kind is all that a new one needs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import ClassVar

from anyformer.core import Spec, kind_of
from anyformer.data.record import Record
from anyformer.errors import SpecError
from anyformer.evaluation.metrics.score import Scores
from anyformer.inference.record_batches import checked
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.objective import Objective, Predictor


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A trained model and the records that it is evaluated on."""

    predictor: Predictor
    records: list[Record]
    generation: GenerationConfig = GenerationConfig()
    """How texts are generated, by metrics that compare texts."""
    on_progress: Callable[[int], None] = lambda done: None
    """Called with the number of records that are done."""

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.records]

    @cached_property
    def generated(self) -> tuple[list[str], list[str], str]:
        """Generated texts, references and how they were generated; generated once for all metrics."""
        records = [checked(self.predictor, record) for record in self.records]
        generator = TextGenerator(self.predictor)
        texts = generator.generate([record.text for record in records], self.generation, self.on_progress)
        references = [record.target or "" for record in records]
        return texts, references, self.generation.describe(pairs=self.predictor.contents.pair)


@dataclass(frozen=True, kw_only=True)
class Metric(Spec):
    """Scores that are measured together. An objective names the kinds that are meaningful for it."""

    names: ClassVar[tuple[str, ...]] = ()
    """Names of the scores; a user may ask for each."""
    needs: ClassVar[str | None] = None
    """A module of the extra `text` that must be installed."""

    def fits(self, job: Job) -> bool:
        """True if it is meaningful for a model although its objective does not name it."""
        return False

    def usual(self, job: Job) -> bool:
        """False if it is measured for this model and these records only on request."""
        return True

    def measure(self, job: Job) -> Scores:
        """The scores by name."""
        raise NotImplementedError

    @property
    def missing(self) -> bool:
        """True if a module that it needs is not installed."""
        return self.needs is not None and find_spec(self.needs) is None


def check_metrics(objective: Objective) -> None:
    """SpecError if the objective, or one that it combines, names a metric that does not exist."""
    for part in objective.parts:
        for kind in part.metrics:
            try:
                kind_of(Metric, kind)
            except SpecError as error:
                raise SpecError(f"{type(part).__name__}: metrics names {kind!r}: {error}") from None
