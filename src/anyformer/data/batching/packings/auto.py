"""The packing that suits the data: plain documents share rows, all else has rows of its own."""

from dataclasses import dataclass

from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.batching.packings.pack import Pack
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents


@dataclass(frozen=True, kw_only=True)
class AutoPacking(PackingSpec, kind="auto"):
    """`pack` for plain documents, `bucket` for pairs and for labelled texts."""

    optional = ("batches", "collate")

    def resolve(self, contents: Contents) -> PackingSpec:
        return Pack() if contents.plain else Bucket()
