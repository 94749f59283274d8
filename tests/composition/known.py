"""Known findings: what a random model may still do wrong. A line goes when its fix lands: the goal is an empty list."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from anyformer.core import HeadSpec, ModelSpec, PartSpec, Spec
from anyformer.models import Branch, Encoder


@dataclass(frozen=True)
class Finding:
    """A model of this kind fails these checks, or crashes at its first run ("runs")."""

    number: str
    checks: Collection[str]
    concerns: Callable[[ModelSpec], bool]


def _holds(spec: Spec, kind: str) -> list[Any]:
    """Every part of this kind."""
    return [part for _, part in spec.walk() if isinstance(part, PartSpec) and part.kind == kind]


def _steps_cost_more(spec: ModelSpec) -> bool:
    return any(_holds(spec, kind) for kind in ("s4", "s4d", "transformer_xl"))


def _lengthens_inside_a_sum(spec: ModelSpec) -> bool:
    """Unfold anywhere but as the part of a branch that replaces the stream."""
    parts = [branch for _, branch in spec.walk() if isinstance(branch, Branch) and branch.join.kind == "replace"]
    return len(_holds(spec, "unfold")) > sum(branch.part.kind == "unfold" for branch in parts)


def _shares_a_tag_with_itself(spec: ModelSpec) -> bool:
    return any(inner.tag == outer.tag for outer in _holds(spec, "shared") for inner in _holds(outer.part, "shared"))


def _bridges_another_width(spec: ModelSpec) -> bool:
    """A projected state that may not be as wide as the encoder's stream."""
    narrow = [part for _, part in spec.walk() if isinstance(part, PartSpec) and part.to_dict().get("hidden")]
    narrow += [part for part in _holds(spec, "bidirectional") if part.merge == "project"]
    narrow += _holds(spec, "fast_forward")
    return bool(narrow) and any(part.bridge == "project" for part in _holds(spec, "started"))


def _reads_halves_with_another_head(spec: ModelSpec) -> bool:
    """Half of the stream for a head that is as wide as the stream, or gives one answer for a text."""
    heads = [head for _, head in spec.walk() if isinstance(head, HeadSpec) and head.kind == "both_directions"]
    inner = [part.kind for head in heads for path, part in head.walk() if path and isinstance(part, HeadSpec)]
    return any(kind not in ("untied", "token_classifier", "hidden") for kind in inner)


def _looks_again_in_half_of_the_stream(spec: ModelSpec) -> bool:
    outer = _holds(spec, "fast_forward") + _holds(spec, "attentive")
    return any(_holds(part, "multi_step_attention") for part in outer)


def _looks_by_a_constant_query(spec: ModelSpec) -> bool:
    return any(_holds(part.look, "luong_attention") for part in _holds(spec, "attentive"))


def _turns_rows_with_types(spec: ModelSpec) -> bool:
    turned = _holds(spec, "one_way") + _holds(spec, "bidirectional")
    slow = [part for part in turned if _holds(part, "s4") or _holds(part, "s4d")]
    return bool(slow) and any(isinstance(part, Encoder) and part.types for _, part in spec.walk())


KNOWN = (
    Finding("2", {"runs"}, _bridges_another_width),
    Finding("5", {"runs"}, _reads_halves_with_another_head),
    Finding("6", {"runs"}, _lengthens_inside_a_sum),
    Finding("7", {"runs"}, _looks_again_in_half_of_the_stream),
    Finding("8", {"flops_of_decoding_equal_the_counter"}, _steps_cost_more),
    Finding("M2", {"flops_equal_the_counter"}, _looks_by_a_constant_query),
    Finding("M3", {"flops_equal_the_counter"}, _turns_rows_with_types),
    Finding("new: shared inside shared of one tag", {"runs"}, _shares_a_tag_with_itself),
)


def is_known(check: str, spec: ModelSpec) -> bool:
    return any(check in finding.checks and finding.concerns(spec) for finding in KNOWN)
