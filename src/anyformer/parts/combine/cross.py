"""Cross-attention: a part whose keys and values come from the encoder."""

from dataclasses import dataclass, replace

from anyformer.core import Part, PartSpec, Site, kind_of
from anyformer.errors import at


@dataclass(frozen=True, kw_only=True)
class Cross(PartSpec, kind="cross"):
    """Lets a part attend to the encoder's output instead of its own tokens."""

    sources = ("self", "memory")
    reads_source = True

    part: PartSpec
    """The inner part, such as attention."""

    @classmethod
    def examples(cls) -> "tuple[Cross, ...]":
        return (cls(part=kind_of(PartSpec, "attention")()),)

    def build(self, site: Site) -> Part:
        with at("part"):
            return self.part.place(replace(site, source="memory"))
