"""Pages of runs are not drawn anew."""

from tests.pictures import same_pictures

__all__ = ["same_pictures"]
