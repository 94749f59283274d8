"""What a field of a spec may say of itself: its range, its help; and plain nested data."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

_LARGEST = 2**53


@dataclass(frozen=True)
class Range:
    """The values that a number may take, as part of its type: `Annotated[int, Range(low=1)]`."""

    low: int | float | None = None
    high: int | float | None = None
    below: int | float | None = None
    above: int | float | None = None
    why: str = ""
    """The reason of the upper bound, for the message."""

    def refusal(self, value: int | float) -> str | None:
        """Why `value` is out of range, or None."""
        if abs(value) > _LARGEST or value != value:
            return f"must be a number up to {_LARGEST:g}"
        if self.low is not None and value < self.low:
            return f"must be at least {self.low:g}"
        if self.high is not None and value > self.high:
            high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
            return f"must be at most {high}" + (f" ({self.why})" if self.why else "")
        if self.below is not None and value >= self.below:
            return f"must be below {self.below:g}"
        if self.above is not None and value <= self.above:
            return f"must be above {self.above:g}"
        return None


Count = Annotated[int, Range(low=1)]
Amount = Annotated[int, Range(low=0)]
Positive = Annotated[float, Range(above=0.0)]
Chance = Annotated[float, Range(low=0.0, below=1.0)]


def range_of(hint: Any) -> Range | None:
    """The range that a type hint declares, looking through `X | None`."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, Range)), None)
    inner = (range_of(argument) for argument in get_args(hint))
    return next((bounds for bounds in inner if bounds is not None), None)


@cache
def field_hints(cls: Any) -> Mapping[str, Any]:
    """Field name -> its type, with the range that it declares."""
    return get_type_hints(cls, include_extras=True)


@cache
def field_help(cls: type) -> Mapping[str, str]:
    """Field name -> the docstring written under it; empty where the source cannot be read."""
    help_texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        help_texts |= _own_help(owner)
    return help_texts


@cache  # every spec asks for its bases again, and reading the source of one parses its whole file
def _own_help(cls: type) -> Mapping[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    help_texts = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if named and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            help_texts[field.target.id] = inspect.cleandoc(str(text.value.value))  # type: ignore[attr-defined]
    return help_texts


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested plain data -> (dotted key, value) pairs, in order; a list of plain values is one value."""
    if isinstance(data, Mapping) and data:
        items: Iterable[tuple[Any, Any]] = data.items()
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        items = enumerate(data)
    else:
        yield path, data
        return
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


_ELSEWHERE = {
    "batch_size": "batch_tokens", "d_model": "dim", "grad_clip": "clip", "gradient_clip": "clip", "hidden_size": "dim",
    "iters": "steps", "learning_rate": "lr", "max_iters": "steps", "max_steps": "steps", "min_lr": "floor",
    "n_embd": "dim", "n_head": "heads", "n_heads": "heads", "n_layer": "depth", "n_layers": "depth",
    "num_attention_heads": "heads", "num_heads": "heads", "num_hidden_layers": "depth", "num_layers": "depth",
    "num_workers": "workers", "seq_len": "context", "vocab_size": "vocab", "warmup_steps": "warmup",
}  # fmt: skip
"""What other tools call it -> what we call it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X? Known: ...' for a name that does not exist."""
    options = sorted(known)
    near = [name for name in (_ELSEWHERE.get(word.lower()),) if name in options]
    near = near or difflib.get_close_matches(word, options, 1, cutoff=0.55)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return f"{guess} Known: {', '.join(options)}."
