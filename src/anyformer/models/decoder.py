"""A stack that reads left to right and predicts the next token: GPT, a prefix-LM, an RNN language model."""

from dataclasses import dataclass

from anyformer.core import HeadSpec
from anyformer.models.single import Single
from anyformer.parts.heads.tied import Tied


@dataclass(frozen=True, kw_only=True)
class Decoder(Single, kind="decoder"):
    """Reads left to right; generates."""

    causal = True

    head: HeadSpec = Tied()
    """The head behind the last layer."""
