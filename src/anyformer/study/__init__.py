"""Studies: the same recipe in several variants, matched, repeated over seeds, and judged."""

from anyformer.study.comparing import compare
from anyformer.study.study import Study, StudySpec, Tuning
from anyformer.study.study_results import Results

__all__ = ["Results", "Study", "StudySpec", "Tuning", "compare"]
