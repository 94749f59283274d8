"""A text as a trained model reads it: with the special tokens that its objective put there, and each token by name."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anyformer.core import Model
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import Problem, SpecError
from anyformer.generation.engine import Engine, Request
from anyformer.models.encoder_decoder import EncoderDecoder
from anyformer.models.single import Single
from anyformer.objectives.heads import speaker
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.transformations import Layout
from anyformer.objectives.word_order import WordOrder
from anyformer.training.runs.run import Run

LONGEST = 4096
"""Tokens that are read at most."""
WRITTEN = 128
"""Tokens that are written at most where no target is given."""
_FRAMED = (MaskedWords, PermutationLM, ReplacedToken, WordOrder)
"""Objectives that put <cls> in front and <sep> behind."""


@dataclass(frozen=True)
class TokenisedText:
    """What goes through the model, and what its tokens are called."""

    tokens: list[int]
    source: list[int] | None
    names: list[str]
    source_names: list[str]
    written: list[str]
    """What the model is about to write while it looks from each of its tokens: the rows of an alignment."""
    left_out: int = 0
    """Tokens of the text that did not fit."""


def read(run: Run, model: Model, text: str, target: str | None = None) -> TokenisedText:
    """The text for this run's model; what it translates into is `target`, or what the model writes itself."""
    spec, tokenizer = run.recipe.model, run.tokenizer
    if not text.strip():
        raise SpecError(problems=[Problem("TEXT", "is empty: there is nothing to look at.")])
    ids, words = tokenizer.encode(text), tokenizer.words
    objective = _first(run.recipe.objective)
    pair = spec.needs_source or isinstance(objective, Seq2Seq)
    if target is not None and not pair:
        raise SpecError(problems=[Problem("--target", "is for models that turn one text into another.")])
    reader = spec.encoder if isinstance(spec, EncoderDecoder) else speaker(spec)
    kept = ids[: _room(reader, pair and not spec.needs_source)]
    if not pair:
        tokens = _laid(kept, reader, objective, words)
        names = _names(tokens, tokenizer)
        return TokenisedText(tokens, None, names, [], names, len(ids) - len(kept))
    source = [*kept, words.sep]
    longest = speaker(spec).max_len - (1 if spec.needs_source else len(source))
    said = (
        tokenizer.encode(target)[:longest]
        if target is not None
        else _write(model, tokenizer, source, spec.needs_source, longest)
    )
    tokens = [words.bos, *said] if spec.needs_source else [*source, *said]
    written = _names([*tokens[1:], words.eos], tokenizer)
    read_first = source if spec.needs_source else None
    source_names = _names(source, tokenizer) if spec.needs_source else []
    return TokenisedText(tokens, read_first, _names(tokens, tokenizer), source_names, written, len(ids) - len(kept))


def _room(reader: Single, with_target: bool) -> int:
    """How many tokens of a text fit beside two special ones."""
    return max(1, min(reader.max_len // 2 if with_target else reader.max_len, LONGEST) - 2)


def _laid(ids: Sequence[int], reader: Single, objective: Objective | None, words: Vocabulary) -> list[int]:
    layout = None if objective is None else vars(objective).get("layout")
    if isinstance(layout, Layout):
        return layout.one(ids, words).ids
    if isinstance(objective, _FRAMED):
        return [words.cls, *ids, words.sep]
    return [words.bos, *ids] if reader.causal else list(ids)


def _first(objective: Objective | None) -> Objective | None:
    """Of a mixture the first."""
    if objective is None:
        return None
    return next((spec for path, spec in objective.walk() if path and isinstance(spec, Objective)), objective)


def _write(model: Model, tokenizer: Tokenizer, source: list[int], encodes: bool, longest: int) -> list[int]:
    words = tokenizer.words
    room = longest + 1 if encodes else longest + len(source)
    engine = Engine(model, max_len=room, bos=words.bos, steps="eager")
    request = Request(source=source) if encodes else Request(prompt=source)
    with torch.no_grad():
        return list(engine.generate([request], max_new=min(WRITTEN, longest), stop=(words.eos,))[0].tokens)


def _names(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode([token], special="show") for token in ids]
