"""Several heads on one stack: words and a class of GPT's fine-tuning, a head for each task of a mixture.

y = head_main(h); the others are reached by name, each on the same h.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Site, kind_of
from anyformer.core.fields import did_you_mean
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Several(HeadSpec, kind="several"):
    """Several heads on one stack, by name."""

    heads: dict[str, HeadSpec]
    """Name -> head; all read the hidden states of the same stack."""
    main: str
    """Name of the head whose output is the output of the model."""

    def check(self) -> None:
        if self.main not in self.heads:
            raise SpecError(f"main: no head is called {self.main!r}.{did_you_mean(self.main, self.heads)}")
        if bad := [name for name in self.heads if not name or "." in name]:
            raise SpecError(f"heads: {bad[0]!r} must be a word without dots.")

    @classmethod
    def examples(cls) -> "tuple[Several, ...]":
        # only the main head is used by a plain call, so the other has nothing to learn
        vector = kind_of(HeadSpec, "pooled").examples()[0]
        return (cls(heads={"words": kind_of(HeadSpec, "untied")(), "vector": vector}, main="words"),)

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(self.heads)

    @property
    def tied(self) -> bool:
        return any(head.tied for head in self.heads.values())

    @property
    def pools(self) -> bool:
        return self.heads[self.main].pools

    @property
    def has_probabilities(self) -> bool:
        return self.heads[self.main].has_probabilities

    def named(self, name: str) -> HeadSpec:
        return self.heads.get(name, self)

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "SeveralHead":
        return SeveralHead(self, site, embedding, vocab)


class SeveralHead(Head):
    def __init__(self, spec: Several, site: Site, embedding: Borrowed[Embedding], vocab: int):
        super().__init__()
        self.heads, self.main = nn.ModuleDict(), spec.main
        for name, head in spec.heads.items():
            with at(f"heads.{name}"):
                self.heads[name] = head.build(site, embedding, vocab)

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return self.named(self.main)(h, frame)

    def pooled(self, h: Tensor, frame: Frame) -> Tensor | None:
        return self.named(self.main).pooled(h, frame)

    def named(self, name: str) -> Head:
        return self.heads[name]  # type: ignore[return-value]
