"""The names of `anyformer.study`, which are loaded on first use."""

from anyformer.study.comparing import compare as compare
from anyformer.study.ladder import scale as scale
from anyformer.study.ladder_results import Scaled as Scaled
from anyformer.study.study import Study as Study
from anyformer.study.study import StudySpec as StudySpec
from anyformer.study.study import Tuning as Tuning
from anyformer.study.study_listener import Listener as Listener
from anyformer.study.study_results import Results as Results
