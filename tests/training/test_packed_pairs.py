"""Packed pairs teach what pairs in rows of their own teach, and no pair of a row knows of another."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from tests.data.corpus import ready
from tests.objectives.small import built, gradients, step
from torch import Tensor

from anyformer.core import Model, ModelSpec, decode
from anyformer.data.batching.batch import Batch, bounded
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.errors import DataError, SpecError
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.objective import Objective
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.words import read_pair
from anyformer.training.loop.feed import Feed, Loader
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import refuse_packed

CONTEXT, OBJECTIVE = 24, Seq2Seq(smoothing=0.1)
LOOK: dict[str, Any] = {"kind": "attention", "heads": 2}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    home = tmp_path_factory.mktemp("prepared")
    pairs = [Record(f"{n}{'s' * (n * 7 % 19)}", target=f"{n}{'t' * (n * 5 % 23)}") for n in range(30)]
    return {form: ready(home / form, pairs, context=CONTEXT, packing=form, valid=0.0) for form in ("pack", "bucket")}


def feed(prepared: Prepared, objective: Objective = OBJECTIVE) -> Feed:
    return Feed(Loader(prepared=prepared, batch_tokens=4 * 2 * CONTEXT, epochs=1), objective, seed=0, prefetch=False)


def half(kind: str, words: int, *parts: dict[str, Any]) -> dict[str, Any]:
    layer = {"branches": [{"part": part} for part in (*parts, {"kind": "mlp", "hidden": 24})]}
    stack = {"depth": 2, "blocks": {"layer": layer}}
    return {"kind": kind, "vocab": words, "dim": 16, "stack": stack, "position": {"kind": "learned"}, "max_len": 32}


def translator(words: int, cross: dict[str, Any] = LOOK, read: dict[str, Any] = LOOK) -> ModelSpec:
    """An encoder and a decoder that looks at it."""
    halves = {"encoder": half("encoder", words, read)}
    halves["decoder"] = half("decoder", words, LOOK, {"kind": "cross", "part": cross})
    for each in halves.values():
        del each["kind"]
    return decode(ModelSpec, {"kind": "encoder_decoder", **halves})


def single(kind: str, words: int) -> ModelSpec:
    return decode(ModelSpec, half(kind, words, LOOK))


@pytest.mark.parametrize("cross", [LOOK, {"kind": "additive_attention"}, {"kind": "luong_attention"}])
def test_loss_and_gradients_are_those_of_pairs_in_rows_of_their_own(
    both: dict[str, Prepared], cross: dict[str, Any]
) -> None:
    models = built(OBJECTIVE, translator(both["pack"].words.size, cross))
    found = {}
    for form, prepared in both.items():
        terms = step(OBJECTIVE, models, [ready.batch for ready in feed(prepared)])
        found[form] = terms["words"].sum / terms["words"].weight, gradients(models)
    (packed, ours), (alone, theirs) = found["pack"], found["bucket"]
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def hidden(model: Model, batch: Batch) -> Tensor:
    with torch.no_grad():
        return read_pair(model, bounded(batch))[0].h


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_pair_never_feels_another_of_its_row(both: dict[str, Prepared], side: str) -> None:
    model = built(OBJECTIVE, translator(both["pack"].words.size))["model"].eval()
    ready = next(iter(feed(both["pack"]))).batch
    text = ready if side == "target" else ready.source
    changed = text.tokens.where(text.frame.segments != 1, text.tokens.flip(1).clamp(min=10))
    assert not changed.equal(text.tokens)
    other = replace(ready, tokens=changed) if side == "target" else replace(ready, source=replace(text, tokens=changed))
    before, after = hidden(model, ready), hidden(model, other)
    rest, own = (ready.frame.segments >= 0) & (ready.frame.segments != 1), ready.frame.segments == 1
    assert torch.equal(before[rest], after[rest]) and not torch.allclose(before[own], after[own])


def test_text_is_counted_alike_however_pairs_are_laid_out(both: dict[str, Prepared]) -> None:
    packed, alone = (sum(ready.tokens for ready in feed(prepared)) for prepared in both.values())
    assert packed == alone == sum(both["bucket"].counts["train"][side] for side in ("tokens", "source"))


@pytest.mark.parametrize(
    ("objective", "model", "words"),
    [
        ({"kind": "seq2seq"}, "decoder", "a decoder reads a pair in one row.*data.packing"),
        ({"kind": "next_token"}, "decoder", "next_token reads no packed pairs.*data.packing"),
        ({"kind": "masked_words"}, "encoder", "masked_words reads no packed pairs"),
        ({"kind": "contrastive"}, "encoder", "contrastive reads no packed pairs"),
        ({"kind": "span_corruption"}, "pair", "span_corruption reads no packed pairs"),
        ({"kind": "mixture", "tasks": {"a": {"objective": {"kind": "seq2seq"}}}}, "decoder", "in one row"),
        ({"kind": "distillation", "objective": {"kind": "seq2seq"}, "teacher": "decoder"}, "pair", "in one row"),
        ({"kind": "seq2seq"}, "linformer", "linformer: every slot mixes all documents of a row"),
    ],
)
def test_who_cannot_read_them_says_so_beforehand(
    both: dict[str, Prepared], objective: dict[str, Any], model: str, words: str, tmp_path: Path
) -> None:
    size = both["pack"].words.size
    if "teacher" in objective:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "recipe.toml").write_text(tomli_w.dumps(Recipe(model=single("decoder", size)).to_dict()))
        objective = {**objective, "teacher": str(tmp_path)}
    asked, mixing = decode(Objective, objective), {"kind": "linformer", "heads": 2, "rank": 4}
    spec = translator(size, read=mixing if model == "linformer" else LOOK)
    adapted = asked.adapt(single(model, size) if model in ("decoder", "encoder") else spec)
    refuse_packed(asked, adapted, both["bucket"])
    with pytest.raises(SpecError, match=words):
        refuse_packed(asked, adapted, both["pack"])


def test_of_packed_documents_a_part_that_mixes_them_says_so_beforehand(tmp_path: Path) -> None:
    texts = [Record("a" * (5 + n)) for n in range(20)]
    asked = MaskedWords()
    for form, told in {"pack": "one document a row", "bucket": ""}.items():
        prepared = ready(tmp_path / form, texts, context=CONTEXT, packing=form, valid=0.0)
        mixing = half("encoder", prepared.words.size, {"kind": "linformer", "heads": 2, "rank": 4})
        refuse_packed(asked, single("encoder", prepared.words.size), prepared)
        refuse_packed(
            replace(asked, sentences="sentence_order"), decode(ModelSpec, mixing), prepared
        )  # lays out its own rows
        with pytest.raises(SpecError, match=told) if told else nullcontext():
            refuse_packed(asked, decode(ModelSpec, mixing), prepared)


def test_one_row_of_several_pairs_is_never_made(both: dict[str, Prepared]) -> None:
    models = built(OBJECTIVE, single("decoder", both["pack"].words.size))
    ready = next(iter(feed(both["pack"]))).batch
    with pytest.raises(DataError, match=r"one stack.*data.packing"):
        OBJECTIVE.loss(models, ready, torch.Generator())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own look at inputs
@pytest.mark.slow
def test_all_batches_are_read_by_graphs_that_were_compiled_for_the_first(both: dict[str, Prepared]) -> None:
    models, graphs, shapes = built(OBJECTIVE, translator(both["pack"].words.size)), [], set()
    model = models["model"]

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch.compiler.set_stance("default", force_backend=keep):
        model.compile()
        model.encode = torch.compile(model.encode)  # type: ignore[method-assign]
        for ready in islice(feed(both["pack"]), 3):
            OBJECTIVE.loss(models, ready.batch, torch.Generator())["words"].sum.backward()
            shapes.add((ready.batch.tokens.shape, ready.batch.source.tokens.shape))
    torch._dynamo.reset()
    assert len(graphs) == 2 and len(shapes) == 1  # a graph for each half
