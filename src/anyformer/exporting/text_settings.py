"""How a trained model reads and writes texts, as the settings of another library."""

from typing import Any

from anyformer.disk import CHAT_TEMPLATE
from anyformer.inference.text_generator import DEFAULT_MAX_NEW, GenerationConfig
from anyformer.interop.reading import read_json
from anyformer.interop.writing import TEXT, TOKENIZER_CONFIG, TextSettings, special_ids
from anyformer.objectives.objective import Predictor
from anyformer.run import Run


def text_settings(run: Run, predictor: Predictor) -> TextSettings:
    """The tokenizer of a run with the special tokens around a text, its classes and its way to generate."""
    contents, template, config = predictor.contents, run.folder / CHAT_TEMPLATE, _tokenizer_config(run)
    # an imported tokenizer puts no token before a text if it did not before
    bare = config.get("add_bos_token") is False
    return TextSettings(
        tokenizer=predictor.tokenizer,
        row=[TEXT] if bare else predictor.lay_out([TEXT]),
        max_len=predictor.spec.input_stack.max_len,
        classes=contents.tags or contents.classes,
        generation=_generation(predictor) if "generate" in predictor.verbs else {},
        chat_template=template.read_text(encoding="utf-8") if template.is_file() else config.get("chat_template"),
    )


def _tokenizer_config(run: Run) -> dict[str, Any]:
    """The special tokens and the chat template of an imported tokenizer; empty for a run that was trained here."""
    file = run.folder / TOKENIZER_CONFIG
    return read_json(file) if file.is_file() else {}


def _generation(predictor: Predictor) -> dict[str, Any]:
    """The settings with which `anyformer generate` writes, by the names of transformers."""
    words, pairs = predictor.tokenizer.words, predictor.contents.pair
    sampler = GenerationConfig().sampler_for(pairs=pairs).to_dict()
    temperature = sampler.get("temperature")
    size = predictor.spec.output_stack.vocabulary
    return {
        **special_ids(words, predictor.spec.needs_source),
        # by default, transformers samples from the 50 most likely tokens
        **({"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}),
        "max_new_tokens": predictor.max_target if pairs else DEFAULT_MAX_NEW,
        **({"suppress_tokens": list(range(words.size, size))} if size > words.size else {}),
    }
