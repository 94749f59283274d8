"""Selects the picture of a kind by its family."""

from anyformer.core import MaskRule, NormSpec, PartSpec, PositionSpec, Spec
from anyformer.drawing.figure_files import Drawing
from anyformer.errors import SpecError
from anyformer.viewing.gallery.mask_pictures import of_masks
from anyformer.viewing.gallery.norm_pictures import of_norms
from anyformer.viewing.gallery.part_pictures import of_parts
from anyformer.viewing.gallery.position_pictures import of_positions


def picture_of(kind: type[Spec]) -> Drawing:
    """The picture of the examples of a kind."""
    if not kind.examples():
        raise SpecError(f"--picture: {kind.kind} has no stand-alone examples, so it cannot be measured.")
    if issubclass(kind, MaskRule):
        return of_masks(kind.examples())
    if issubclass(kind, PositionSpec):
        return of_positions(kind.examples())
    if issubclass(kind, NormSpec):
        return of_norms(kind.examples())
    if issubclass(kind, PartSpec):
        return of_parts(kind.examples())
    raise SpecError(f"--picture: {kind.kind} has no picture. Masks, positions, norms and mixers have one.")
