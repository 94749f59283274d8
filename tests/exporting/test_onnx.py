"""ONNX: onnxruntime computes what the run does, at several lengths and batches; other kinds are refused by name."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.equality.comparing import randomise
from tests.exporting import runs
from tests.exporting.table import refused, rows, small
from tokenizers import Tokenizer

from anyformer.cli.main import main
from anyformer.core import Frame
from anyformer.errors import CheckpointError, SpecError
from anyformer.generation.samplers.greedy import Greedy
from anyformer.inference.text_generator import GenerationConfig
from anyformer.interop import onnx_graph
from anyformer.interop.onnx_graph import FILE, PACKAGES, refuse_kind, run_session, write_graph
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.pools.attention import AttentionPool
from anyformer.parts.pools.last import Last
from anyformer.parts.pools.mean import Mean

MISSING = [name for name in PACKAGES if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
BEYOND = 600
"""Longest text of the graphs: kernels change at 256 and 512 tokens, graphs must not."""
KIND = "refused: `model.kind=encoder_decoder`"
PAIRS = [name for name, row in rows().items() if row.onnx == KIND]
ALONE = [name for name, row in rows().items() if row.onnx != KIND]


@pytest.mark.parametrize("name", PAIRS)
def test_an_encoder_decoder_is_refused_by_its_kind(name: str) -> None:
    with pytest.raises(SpecError, match=r"model\.kind=encoder_decoder"):
        refuse_kind(small(name))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kind of graph of a preset, or its refusal; small presets of one family are the same model."""
    known: dict[str, str] = {}

    def of(name: str) -> str:
        spec = small(name, BEYOND)
        if spec.digest() not in known:
            model = spec.build().eval()
            randomise(model, 0.1)
            try:
                graph, agreement = write_graph(tmp_path_factory.mktemp("onnx"), spec, model)
                assert agreement.difference <= 1e-4
                known[spec.digest()] = graph.kind
            except SpecError as error:
                known[spec.digest()] = f"refused: {error}"
        return known[spec.digest()]

    return of


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("name", ALONE)
def test_a_preset_becomes_the_graph_of_the_table_or_is_refused(name: str, outcomes: Any) -> None:
    cell, outcome = rows()[name].onnx, outcomes(name)
    reason = refused(cell)
    assert reason.replace("`", "") in outcome if reason else cell == outcome, outcome


HEADS = {
    "classes of a mean": ("small-encoder", Classifier(classes=3, pool=Mean())),
    "classes by attention": ("small-encoder", Classifier(classes=3, pool=AttentionPool())),
    "classes of a decoder": ("small", Classifier(classes=3, pool=Last())),
    "tags": ("bert-base", TokenClassifier(classes=5)),
    "an embedder": ("small-encoder", Pooled(pool=Mean())),
}


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("name", HEADS)
def test_other_heads_are_exported_too(name: str, tmp_path: Path) -> None:
    preset, head = HEADS[name]
    spec = small(preset).with_head(head)
    model = spec.build().eval()
    randomise(model, 0.1)
    graph, agreement = write_graph(tmp_path, spec, model)
    assert graph.kind == "encoder graph" and agreement.difference <= 1e-4
    assert graph.outputs == ["embeddings" if isinstance(head, Pooled) else "logits"]


@pytest.mark.slow
@needs_onnx
def test_a_graph_is_compared_at_lengths_that_were_not_traced(tmp_path: Path) -> None:
    import onnxruntime

    spec = small("small-encoder")
    model = spec.build().eval()
    write_graph(tmp_path, spec, model)
    session = onnxruntime.InferenceSession(str(tmp_path / FILE))
    for batch, length in ((1, 1), (3, 2), (4, 11), (1, 24)):
        tokens = torch.randint(300, (batch, length))
        mask = torch.ones_like(tokens)
        mask[:, length - length // 3 :] = 0
        with torch.no_grad():
            expected = model(tokens, Frame(valid=mask.bool())).y
        (actual,) = run_session(session, [tokens, mask])
        assert torch.allclose(actual[mask.bool()], expected[mask.bool()], atol=1e-5)


@pytest.mark.slow
@needs_onnx
def test_onnxruntime_writes_the_texts_of_the_run(tmp_path: Path, capsys: Any) -> None:
    import onnxruntime

    run = runs.language_model(tmp_path)
    assert main(["export", str(run.folder), "--to", "onnx", "--out", str(tmp_path / "onnx"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == "decoder graph with cache" and facts["largest_difference"] <= 1e-4
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / FILE))
    kinds = {"tensor(float)": np.float32, "tensor(bool)": np.bool_}
    empty = [np.zeros([1, *each.shape[1:]], kinds[each.type]) for each in session.get_inputs()[3:]]
    for prompt in ("the fox", "a"):
        past, new, ids, place = empty, [], tokenizer.encode(prompt).ids, 0
        while len(new) < 12:
            row = np.array([ids])
            inputs = [row, np.arange(place, place + len(ids))[None], np.ones_like(row), *past]
            names = [each.name for each in session.get_inputs()]
            logits, *past = session.run(None, dict(zip(names, inputs, strict=True)))
            place, ids = place + len(ids), [int(logits[0, -1].argmax())]
            new += ids
        expected = run.generate([prompt], GenerationConfig(sampler=Greedy(), max_new=12))
        assert 3 not in new and [run.tokenizer.decode(new)] == expected
    assert "past.0" in (tmp_path / "onnx" / "README.md").read_text()


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("error", [KeyboardInterrupt, CheckpointError("differs")])
def test_a_failed_or_interrupted_export_leaves_no_half_file(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, graph: Any) -> None:
        assert file.stat().st_size > 1000  # the graph is written, but not yet checked
        raise error

    run = runs.classifier(tmp_path)
    monkeypatch.setattr(onnx_graph, "check_graph", fail)
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["export", str(run.folder), "--to", "onnx", "--out", str(tmp_path / "onnx")]) != 0
    assert {path.name for path in tmp_path.iterdir()} == before


def test_missing_packages_are_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = runs.language_model(tmp_path)
    monkeypatch.setattr(onnx_graph, "find_spec", lambda name: None)
    assert main(["export", str(run.folder), "--to", "onnx", "--out", str(tmp_path / "onnx")]) == 2
    error = capsys.readouterr().err
    assert "onnxruntime" in error and "pip install 'anyformer[onnx]'" in error and not (tmp_path / "onnx").exists()
