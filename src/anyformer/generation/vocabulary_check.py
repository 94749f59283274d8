"""The token ids that a model has an embedding for. Any other is an index out of bounds, which ends a GPU process."""

from collections.abc import Sequence
from typing import NamedTuple

from anyformer.core import Embedding, Model
from anyformer.errors import DataError


class VocabularySizes(NamedTuple):
    """Number of token ids, from 0 on; None if it is not known."""

    prompt: int | None
    source: int | None

    @classmethod
    def of(cls, model: Model) -> "VocabularySizes":
        """The sizes of a model's embeddings. An encoder-decoder may have two; the encoder's is the first."""
        sizes = [_rows(module) for module in model.modules() if isinstance(module, Embedding)]
        return cls(sizes[-1], sizes[0]) if sizes else cls(None, None)


def check_known(what: str, tokens: Sequence[int], size: int | None) -> None:
    """Refuses ids that the model has no embedding for."""
    wrong = next((token for token in tokens if token < 0 or (size is not None and token >= size)), None)
    if wrong is not None:
        raise DataError(f"{what}: the token id {wrong} is outside the vocabulary of {size or 'this model'}.")


def _rows(embedding: Embedding) -> int | None:
    tables = [name for name, slices in embedding.roles.items() if slices[0][0] == "embed"]
    return int(embedding.get_parameter(tables[0]).shape[0]) if tables else None
