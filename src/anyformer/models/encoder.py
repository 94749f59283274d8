"""A stack in which every token sees every other: BERT, a classifier, the reading half of a translator."""

from dataclasses import dataclass

from anyformer.core import HeadSpec
from anyformer.models.single import Single
from anyformer.parts.heads.hidden import Hidden


@dataclass(frozen=True, kw_only=True)
class Encoder(Single, kind="encoder"):
    """Reads in both directions; represents."""

    causal = False
    decodes = False

    head: HeadSpec = Hidden()
    """The head behind the last layer."""
