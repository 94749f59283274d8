"""Optimisers, learning-rate schedules, gradient clipping and weight averages. Parameter groups follow from roles."""

# Every kind is imported here so that it is registered in its family.
from anyformer.optim.adafactor import Adafactor
from anyformer.optim.adamw import AdamW
from anyformer.optim.average import Ema, average
from anyformer.optim.lion import Lion
from anyformer.optim.muon import Muon
from anyformer.optim.optimizer import LearnedTensor, Optimizer, OptimizerSpec, ScheduleSpec, clip, learned
from anyformer.optim.schedules.constant import Constant
from anyformer.optim.schedules.cosine import Cosine
from anyformer.optim.schedules.inverse_square_root import InverseSquareRoot
from anyformer.optim.schedules.linear import LinearSchedule
from anyformer.optim.schedules.noam import Noam
from anyformer.optim.schedules.slanted_triangular import SlantedTriangular
from anyformer.optim.schedules.warmup_stable_decay import WarmupStableDecay
from anyformer.optim.sgd import SGD

__all__ = [
    "SGD", "Adafactor", "AdamW", "Constant", "Cosine", "Ema", "InverseSquareRoot", "LearnedTensor", "LinearSchedule",
    "Lion", "Muon", "Noam", "Optimizer", "OptimizerSpec", "ScheduleSpec", "SlantedTriangular", "WarmupStableDecay",
    "average", "clip", "learned",
]  # fmt: skip
