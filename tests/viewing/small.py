"""Small models to look into, and the runs that hold them, written without training."""

import json
import subprocess
from pathlib import Path
from shutil import which

import pytest
import tomli_w

from anyformer.core import Model, ModelSpec, PartSpec
from anyformer.data.tokenizers.word import Word
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.objective import Objective
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.runs.checkpoint import save
from anyformer.viewing.attention_maps import looks
from anyformer.viewing.page import page
from anyformer.viewing.tokenised_text import TokenisedText

VOCAB, DIM = 50, 16
TEXT = "the animal did not cross the street because it was too tired"
EVIL = "<script>document.title='owned'</script>"
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := which(name))), None)


def stack(*parts: PartSpec, depth: int = 2) -> Stack:
    branches = tuple(Branch(part=part) for part in (*parts, MLP(hidden=8)))
    return Stack(blocks={"layer": Block(branches=branches)}, depth=depth)


def encoder(*parts: PartSpec, depth: int = 2, vocab: int = VOCAB) -> Encoder:
    return Encoder(vocab=vocab, dim=DIM, stack=stack(*(parts or (Attention(heads=2),)), depth=depth), max_len=4096)


def decoder(*parts: PartSpec, depth: int = 2, max_len: int = 4096) -> Decoder:
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack(*(parts or (Attention(heads=2),)), depth=depth), max_len=max_len)


def pair() -> EncoderDecoder:
    writing = decoder(Attention(heads=2), Cross(part=Attention(heads=4)))
    return EncoderDecoder(encoder=encoder(Attention(heads=2)), decoder=writing)


def built(spec: ModelSpec) -> Model:
    """With weights large enough that heads differ."""
    model = spec.build(seed=1)
    for parameter in model.parameters():
        parameter.data.mul_(8.0)
    return model.eval()


def reading(*names: str) -> TokenisedText:
    return TokenisedText(list(range(len(names))), None, list(names), [], list(names))


def run(
    folder: Path, spec: ModelSpec, objective: Objective | None = None, texts: str = TEXT, packing: str = "bucket"
) -> tuple[Path, Model]:
    """A run folder with a model that nobody trained, and that model."""
    folder.mkdir(parents=True)
    tokenizer = Word(sentinels=0).train([f"{texts} {EVIL} I record the wide"])
    assert tokenizer.words.size <= VOCAB
    tokenizer.save(folder / "tokenizer.json")
    recipe = Recipe(model=(objective or MaskedWords()).adapt(spec), objective=objective or MaskedWords())
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe.to_dict()))
    model = built(recipe.model)
    facts = {"contents": {"pair": (objective or MaskedWords()).kind == "seq2seq"}, "context": 64, "packing": packing}
    (folder / "environment.json").write_text(json.dumps({"data": {**facts, "splits": {}}}))
    save(folder / "checkpoints", 1, {"model": model.state_dict()}, {"progress": {"step": 1}})
    return folder, model


def html(spec: ModelSpec, model: Model, *names: str) -> str:
    """The page of a model that reads tokens 0, 1, 2, ..."""
    return page("run", " ".join(names), reading(*names), looks(spec, model, list(range(len(names)))))


def long_page(spec: ModelSpec) -> str:
    """The page of a text of 2,048 tokens."""
    names = [f"w{place}" for place in range(2048)]
    read = TokenisedText([place % 40 for place in range(2048)], None, names, [], names)
    return page("run", " ".join(names), read, looks(spec, built(spec), read.tokens))


def in_browser(file: Path, address: str = "", *flags: str) -> str:
    """The page as a browser has it once its script has run; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium here to open the page with")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={file.parent / 'profile'}"]
    done = subprocess.run(
        [*command, *flags, "--dump-dom", f"file://{file}{address}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
