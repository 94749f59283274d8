"""Studies: the same recipe in several variants, matched, repeated over seeds, and judged."""

from anyformer.study.comparing import compare
from anyformer.study.results import Results
from anyformer.study.study import Study, StudySpec, Tuning

__all__ = ["Results", "Study", "StudySpec", "Tuning", "compare"]
