"""Core types: specs, frames, parts, masks, positions, costs and states."""

from anyformer.core.costs import Cost, CostTree, Work, cost
from anyformer.core.fields import Amount, Chance, Count, Positive, Range
from anyformer.core.frame import (
    AlignedCursor,
    ContiguousCursor,
    Cursor,
    DocumentBounds,
    Frame,
    Marks,
    Memory,
    RaggedCursor,
    ReadingMarks,
    State,
    detach,
    fork,
    nbytes,
    reorder,
)
from anyformer.core.masks import And, Causal, Full, MaskRule, Or, Segment
from anyformer.core.model import HeadView, Model, ModelSpec, StackFacts, WrappedModel
from anyformer.core.module import (
    Borrowed,
    Call,
    Fill,
    InitSpec,
    Linear,
    Matrix,
    Module,
    Registry,
    Role,
    Site,
    Table,
    Tap,
    capture,
    initialise,
    param,
)
from anyformer.core.part import (
    EMPTY,
    Embedding,
    EmbeddingSpec,
    Head,
    HeadSpec,
    Join,
    JoinSpec,
    Norm,
    NormSpec,
    Out,
    Part,
    PartSpec,
    Pool,
    PoolSpec,
)
from anyformer.core.positions import Bias, Heads, Position, PositionSpec
from anyformer.core.spec import Spec, decode, kind_of

__all__ = [
    "EMPTY", "AlignedCursor", "Amount", "And", "Bias", "Borrowed", "Call", "Causal", "Chance", "ContiguousCursor",
    "Cost", "CostTree", "Count", "Cursor", "DocumentBounds", "Embedding", "EmbeddingSpec", "Fill", "Frame", "Full",
    "Head", "HeadSpec", "HeadView", "Heads", "InitSpec", "Join", "JoinSpec", "Linear", "Marks", "MaskRule", "Matrix",
    "Memory", "Model", "ModelSpec", "Module", "Norm", "NormSpec", "Or", "Out", "Part", "PartSpec", "Pool", "PoolSpec",
    "Position", "PositionSpec", "Positive", "RaggedCursor", "Range", "ReadingMarks", "Registry", "Role", "Segment",
    "Site", "Spec", "StackFacts", "State", "Table", "Tap", "Work", "WrappedModel", "capture", "cost", "decode",
    "detach", "fork", "initialise", "kind_of", "nbytes", "param", "reorder",
]  # fmt: skip
