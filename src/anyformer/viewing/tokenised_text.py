"""A text as a trained model reads it: with the special tokens of its objective, and each token by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import Problem, SpecError
from anyformer.inference.text_generator import TextGenerator
from anyformer.objectives.objective import Predictor

LONGEST = 4096
"""Maximum number of tokens that are read."""
WRITTEN = 128
"""Maximum number of tokens that are generated if no target is given."""


@dataclass(frozen=True)
class TokenisedText:
    """The tokens that go through the model, and their names."""

    tokens: list[int]
    source: list[int] | None
    names: list[str]
    source_names: list[str]
    written: list[str]
    """The token that the model predicts at each of its positions: the rows of an alignment."""
    left_out: int = 0
    """Number of tokens of the text that did not fit."""


def read(predictor: Predictor, text: str, target: str | None = None) -> TokenisedText:
    """The text for a model; a model of pairs also reads `target`, or the target that it generates itself."""
    if not text.strip():
        raise SpecError(problems=[Problem("TEXT", "is empty. Give a text to read.")])
    predictor = predictor.head_views[0]
    spec, tokenizer = predictor.spec, predictor.tokenizer
    pair = spec.needs_source or (predictor.contents.pair and "generate" in predictor.objective.serves)
    if target is not None and not pair:
        raise SpecError(problems=[Problem("--target", "is for models that turn one text into another.")])
    in_one_row = pair and not spec.needs_source
    ids, longest = tokenizer.encode(text), spec.input_stack.max_len
    fitting = ids[: max(1, min(longest // 2 if in_one_row else longest, LONGEST) - 2)]  # two special tokens
    laid_out, left_out = predictor.lay_out(fitting), len(ids) - len(fitting)
    if not pair:
        names = _names(laid_out, tokenizer)
        return TokenisedText(laid_out, None, names, [], names, left_out)
    room = predictor.max_len - (len(laid_out) if in_one_row else 1)
    if target is not None:
        answer = tokenizer.encode(target)[:room]
    else:
        generator = TextGenerator(predictor, predictor.objective.serves[0], steps="eager")
        answer = list(generator.generate_tokens([laid_out], max_new=min(WRITTEN, room))[0])
    tokens = [*laid_out, *answer] if in_one_row else [tokenizer.words.bos, *answer]
    written = _names([*tokens[1:], tokenizer.words.eos], tokenizer)
    source, source_names = (None, []) if in_one_row else (laid_out, _names(laid_out, tokenizer))
    return TokenisedText(tokens, source, _names(tokens, tokenizer), source_names, written, left_out)


def _names(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.name(token) for token in ids]
