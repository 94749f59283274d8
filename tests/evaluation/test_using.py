"""Asking runs from Python: what comes back is what the model says, alone or among others."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tests.evaluation.runs import ANIMALS, FOLDER, ONE, RECIPES, SENTENCES, THINGS, VERBS, file, run_of

from anyformer.core import Frame
from anyformer.data.record import Record
from anyformer.errors import DataError, SpecError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.generation.beam.beam_search import Beam
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.inference.classifying import classify
from anyformer.inference.record_batches import record_batches
from anyformer.inference.searching import Index, IndexedText
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.classify import Classify
from anyformer.objectives.mixture import Mixture, MixtureTask
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.regress import Regress
from anyformer.run import train
from anyformer.statistics.intervals import ratio
from anyformer.training import load

EXPECTED = {
    "language": {"loss", "perplexity", "bits_per_byte"},
    "masked": {"loss", "perplexity", "accuracy"},
    "permuted": {"loss", "perplexity", "accuracy"},
    "spans": {"loss", "perplexity"},
    "pairs": {"loss", "perplexity", "exact_match", "bleu", "chrf"},
    "one_row": {"loss", "perplexity", "exact_match", "bleu", "chrf"},
    "classes": {"loss", "accuracy", "macro_f1", "matthews", "calibration_error"},
    "numbers": {"squared_error", "absolute_error", "r2", "pearson", "spearman"},
    "tags": {"loss", "accuracy", "macro_f1", "matthews", "calibration_error"},
    "choices": {"loss", "accuracy", "macro_f1", "matthews", "calibration_error"},
    "judged": {"loss", "accuracy", "macro_f1", "matthews", "calibration_error"},
    "vectors": {"recall@1", "recall@5", "recall@10", "mrr", "ndcg@10"},
    "replaced": {"loss", "words", "replaced"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_knows_its_scores_and_each_has_an_interval(name: str) -> None:
    found = run_of(name).evaluate(limit=24)
    assert set(found) == EXPECTED[name]
    for score in found.values():
        if score.low is None or score.high is None:
            assert "every resample" in score.signature or "too few" in score.signature
        else:
            assert score.low < score.high and score.low - 1e-9 <= score.value <= score.high + 1e-9
        assert score.texts == 24 and score.tokens > 5 * 24


def test_rouge_is_for_summaries_and_on_request() -> None:
    predictor, records = run_of("pairs").trained("cpu"), list(run_of("pairs").records())[:4]
    rouge = {"rouge1", "rouge2", "rougel"}
    summaries = [replace(record, target=record.text.split()[0]) for record in records]
    assert rouge <= set(evaluate(Job(predictor=predictor, records=summaries)).scores)
    assert not rouge & set(evaluate(Job(predictor=predictor, records=records)).scores)
    assert set(evaluate(Job(predictor=predictor, records=records), ["rougel"]).scores) == {"rougel"}


@pytest.mark.parametrize("name", ["language", "pairs", "one_row", "classes", "tags"])
def test_scores_do_not_depend_on_what_shares_a_batch(name: str) -> None:
    trained = run_of(name).trained("cpu")
    records = list(run_of(name).records())[:6]
    together = evaluate(Job(predictor=trained, records=records), ["loss"]).scores["loss"].value
    each = [evaluate(Job(predictor=trained, records=[record]), ["loss"]).scores["loss"].value for record in records]
    assert together == pytest.approx(np.mean(each), abs=1e-5)  # all sentences have as many words


@pytest.mark.parametrize(("name", "score"), [("classes", "loss"), ("tags", "loss"), ("numbers", "squared_error")])
def test_resamples_draw_records_in_their_order(name: str, score: str) -> None:
    trained, rng = run_of(name).trained("cpu"), np.random.default_rng(0)
    records, words = list(run_of(name).records())[:20], rng.integers(2, 7, size=20)
    cut = [
        replace(record, text=" ".join(record.text.split()[:count]), tags=record.tags[:count])
        for record, count in zip(records, words, strict=True)
    ]
    alone = [evaluate(Job(predictor=trained, records=[record]), [score]).scores[score].value for record in cut]
    counts = words if name == "tags" else np.ones(20)
    together = evaluate(Job(predictor=trained, records=cut), [score]).scores[score].resampled
    np.testing.assert_allclose(together, ratio(alone * counts, counts).resampled, atol=1e-5)


def test_ter_is_computed_only_on_request() -> None:
    (name,) = run_of("pairs").evaluate(metrics=["ter"], limit=4)
    assert name == "ter"


@pytest.mark.row("PRE-22", clause="three interfaces on one run: embed(), init_from, generate()")
@pytest.mark.row("PRE-22", clause="init_from starts a model from pre-trained weights")
@pytest.mark.row("OPT-16", clause="starts from the pre-trained weights")
def test_a_pretrained_run_gives_vectors_starts_others_and_writes() -> None:
    run = run_of("language")
    assert run.embed(SENTENCES[:3]).shape == (3, 32)
    assert run.generate(["the cat"], GenerationConfig(sampler=Greedy(), max_new=3))[0]
    more = train(
        file("texts"), *RECIPES["language"][1], "train.steps=1", "optimizer.lr=1e-9", "data.tokenizer.kind=file",
        f"data.tokenizer.path={run.folder}/tokenizer.json", out=FOLDER / "runs" / "more", cache=FOLDER / "cache",
        init_from=run,
    )  # fmt: skip
    ours, theirs = run.model().state_dict(), more.model().state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


@pytest.mark.row(
    "PRE-17", clause=("same encoder with a new output layer", "all parameters are fine-tuned, not only the new layer")
)
@pytest.mark.row(
    "OPT-16", clause=("all parameters change in training", "the added linear head W_y has the shape (classes, d)")
)
def test_fine_tuning_takes_body_and_tokenizer_over_and_moves_everything() -> None:
    start = run_of("masked")
    settings = [key for key in ONE if "tokenizer" not in key]
    tuned = train(
        file("classes"), *settings, "train.steps=8", out=FOLDER / "runs" / "tuned", cache=FOLDER / "cache",
        init_from=start,
    )  # fmt: skip
    assert tuned.tokenizer.fingerprint() == start.tokenizer.fingerprint()
    before, after = start.model().state_dict(), tuned.model().state_dict()
    body = [name for name in after if not name.startswith("head.")]
    assert all(name in before and not torch.equal(before[name], after[name]) for name in body)
    assert after["head.classes.weight"].shape == (2, 32)


@pytest.mark.parametrize("name", ["language", "masked", "classes", "vectors", "pairs"])
def test_a_vector_does_not_depend_on_what_is_beside_it(name: str) -> None:
    run, texts = run_of(name), [SENTENCES[0], "the cat", " ".join(SENTENCES[:3]), SENTENCES[7]]
    together = run.embed(texts)
    alone = np.concatenate([run.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_vectors_that_were_learned_by_angles_have_length_one() -> None:
    lengths = np.linalg.norm(run_of("vectors").embed(SENTENCES[:5]), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-5)


@pytest.mark.row("TSK-03", clause="query and documents are encoded, documents ranked by cosine")
def test_a_run_finds_the_document_that_equals_the_query() -> None:
    (hits,) = run_of("vectors").search([SENTENCES[3]], SENTENCES[:5], top=2)
    assert hits[0].document == (SENTENCES[3], "3")
    assert hits[0].score == pytest.approx(1.0, abs=1e-5) and len(hits) == 2


def test_a_language_model_goes_on_as_it_learned() -> None:
    texts = run_of("language").generate(["the cat", "the dog jumps"], GenerationConfig(sampler=Greedy()))
    assert texts[0].split()[0] in ("jumps", "runs", "looks") and texts[1].split()[:2] == ["over", "the"]


@pytest.mark.row("PRE-22", clause="embed() gives representations to reuse")
def test_vectors_are_the_last_states_of_the_model_and_a_linear_probe_can_read_them() -> None:
    run, model = run_of("language"), run_of("language").model().eval()
    vectors, words = run.embed(SENTENCES), run.tokenizer.words
    for text, vector in zip(SENTENCES[:4], vectors, strict=False):
        tokens = torch.tensor([[words.bos, *run.tokenizer.encode(text)]])
        with torch.no_grad():
            expected = model(tokens, Frame(), logits=False).y[0, -1]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    things = np.array([THINGS.index(text.split()[-1]) for text in SENTENCES])
    seen = np.arange(len(SENTENCES)) % 4 > 0
    probe, *_ = np.linalg.lstsq(vectors[seen], np.eye(3)[things[seen]], rcond=1e-3)
    assert np.mean((vectors[~seen] @ probe).argmax(1) == things[~seen]) > 0.8  # a third by chance


@pytest.mark.row("PRE-22", clause="generate() samples from the learned distribution")
def test_words_are_sampled_as_often_as_the_model_finds_them_likely() -> None:
    run, draws = run_of("language"), 2000
    config = GenerationConfig(sampler=Sample(temperature=1.0), seed=3, max_new=1)
    said = Counter(text.strip() for text in run.generate(["the cat"] * draws, config))
    tokens = torch.tensor([[run.tokenizer.words.bos, *run.tokenizer.encode("the cat")]])
    with torch.no_grad():
        chances = run.model().eval()(tokens, Frame()).y[0, -1].double().softmax(-1)
    expected = {verb: draws * chances[run.tokenizer.encode(verb)[0]].item() for verb in VERBS}
    found, wanted = [said[verb] for verb in VERBS], list(expected.values())
    assert min(wanted) > 20
    assert chisquare([*found, draws - sum(found)], [*wanted, draws - sum(wanted)]).pvalue > 1e-3


@pytest.mark.row("SUM-03", clause="generation starts after <sep>")
def test_a_decoder_writes_what_follows_the_separator() -> None:
    run, model = run_of("one_row"), run_of("one_row").model().eval()
    words, answers = run.tokenizer.words, run.generate(SENTENCES[:5], GenerationConfig(sampler=Greedy(), max_new=6))
    for text, answer in zip(SENTENCES, answers, strict=False):
        row = [*run.tokenizer.encode(text), words.sep]
        start = len(row)
        while len(row) < start + 6 and row[-1] != words.eos:
            with torch.no_grad():
                row.append(int(model(torch.tensor([row]), Frame()).y[0, -1].argmax()))
        assert answer == run.tokenizer.decode(row[start:]) and answer


def test_the_same_seed_gives_the_same_text_whatever_else_is_asked() -> None:
    run, manner = run_of("language"), GenerationConfig(sampler=Sample(temperature=1.0), seed=5, max_new=6)
    first = run.generate(["the cat", "the dog"], manner)
    assert run.generate(["the cat", "the crow", "the dog"], manner)[0] == first[0]
    assert run.generate(["the cat"] * 12, replace(manner, seed=6)) != run.generate(["the cat"] * 12, manner)


def test_a_stop_text_ends_sampling_and_beams_alike() -> None:
    run = run_of("language")
    for manner in (
        GenerationConfig(sampler=Greedy(), stop=("over",)),
        GenerationConfig(beam=Beam(width=2), stop=("over",)),
    ):
        assert "over" not in run.generate(["the cat"], manner)[0]


@pytest.mark.parametrize("name", ["pairs", "one_row"])
def test_a_model_of_pairs_writes_no_more_than_the_longest_target_of_training(name: str) -> None:
    settings = (*RECIPES[name][1], "train.steps=1", "data.context=120", "data.tokenizer.sentinels=0")
    run = train(file("pairs"), *settings, out=FOLDER / "runs" / f"long_{name}", cache=FOLDER / "cache")
    config = GenerationConfig(sampler=Sample(temperature=9.0))
    bounded, free = (run.generate(SENTENCES[:20], each) for each in (config, replace(config, max_new=40)))
    words = [max(len(text.split()) for text in texts) for texts in (bounded, free)]
    assert words[0] <= 7 < words[1]  # six words and <eos>


def test_ids_that_the_tokenizer_lacks_are_never_said() -> None:
    folder = FOLDER / "runs" / "roomy"
    settings = (*RECIPES["language"][1], "train.steps=1", "model.vocab=500")
    roomy = train(file("texts"), *settings, out=folder, cache=FOLDER / "cache")
    for manner in (
        GenerationConfig(sampler=Sample(temperature=5.0), max_new=20),
        GenerationConfig(beam=Beam(width=4), max_new=8),
    ):
        assert len(roomy.generate(["the"] * 8, manner)) == 8


@pytest.mark.row("TSK-02", clause="a masked place is filled with the most likely word")
def test_gaps_are_filled_with_words_of_their_kind() -> None:
    (found,) = run_of("masked").fill(["the cat <mask> over the <mask>"], top=3)
    assert len(found.gaps) == 2 and all(len(gap) == 3 for gap in found.gaps)
    assert found.text.startswith("the cat") and "<mask>" not in found.text
    chances = [guess.probability or 0.0 for guess in found.gaps[0]]
    assert chances == sorted(chances, reverse=True) and sum(chances) <= 1.0


def test_a_model_of_permuted_orders_fills_each_gap_by_what_is_known() -> None:
    one, two = run_of("permuted").fill(["the cat jumps <mask> the wall", "the <mask> jumps <mask> the wall"], top=4)
    assert one.text == "the cat jumps over the wall" and [len(it.gaps) for it in (one, two)] == [1, 2]
    animal, over = (gap[0].text.strip() for gap in two.gaps)
    assert animal in ANIMALS and over == "over"


def test_spans_come_back_in_their_places() -> None:
    (found,) = run_of("spans").fill(["the cat <mask> the wall"])
    assert found.text.startswith("the cat") and found.text.endswith("the wall") and len(found.gaps) == 1


@pytest.mark.row("TSK-07")
def test_classes_come_with_all_their_probabilities() -> None:
    water, land = run_of("classes").classify(["the cat runs over the lake", "the dog looks over the wall"])
    assert (water.label, land.label) == ("water", "land")
    assert sum(water.probabilities.values()) == pytest.approx(1.0)
    (words,) = run_of("tags").classify(["the fox runs over the tree"])
    assert [word.label for word in words.words] == ["other", "noun", "other", "other", "other", "noun"]
    assert run_of("numbers").classify(["the cat runs over the lake"])[0].number is not None
    assert run_of("choices").classify(["the cat runs over the lake\tcat\tnobody"])[0].label in ("cat", "nobody")
    assert run_of("judged").classify([f"{SENTENCES[0]}\t{SENTENCES[1]}"])[0].label in ("True", "False")


def test_stars_from_one_to_five_are_classified(tmp_path: Path) -> None:
    rows = [{"text": f"{'good ' * stars}film {n}", "stars": stars} for n in range(20) for stars in range(1, 6)]
    (file := tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = train(
        str(file), *ONE, "model.embedding.buckets=1024", steps=2, out=tmp_path / "run", cache=tmp_path / "cache"
    )
    assert {*run.classify(["good film"])[0].probabilities} == {"1", "2", "3", "4", "5"}


def test_a_long_text_loses_its_end_and_says_so() -> None:
    short, long = run_of("classes").classify([SENTENCES[0], " ".join(SENTENCES)])
    assert long.cut and not short.cut


def test_a_label_that_training_never_saw_is_named() -> None:
    trained = run_of("classes").trained("cpu")
    with pytest.raises(DataError, match="somewhere: the label 'fire' was never seen"):
        list(record_batches(trained, [Record("the cat", label="fire", where="somewhere")]))
    with pytest.raises(DataError, match="has no label"):
        list(record_batches(trained, [Record("the cat", where="somewhere")]))


def test_a_run_says_what_fits_instead() -> None:
    for name, ask in (("language", "classify"), ("classes", "generate"), ("pairs", "fill")):
        with pytest.raises(SpecError, match="What fits: anyformer"):
            run_of(name).trained("cpu").for_task(ask)  # type: ignore[arg-type]


def test_a_mixture_can_be_asked_for_each_of_its_tasks() -> None:
    trained = run_of("classes").trained("cpu")
    tasks = {"words": MixtureTask(objective=NextToken()), "topic": MixtureTask(objective=Classify(classes=2))}
    base = load("small", "model.dim=32", "model.stack.depth=1", f"model.vocab={trained.tokenizer.words.size}")
    mixture = Mixture(tasks=tasks)
    spec = mixture.adapt(base)
    both = replace(trained, spec=spec, models={"model": spec.build()}, objective=mixture)
    assert both.verbs == ("generate", "classify")
    assert len(TextGenerator(both).generate(["the cat"], GenerationConfig(max_new=2))) == 1
    assert classify(both, [Record("the cat runs")])[0].label in ("land", "water")


@pytest.mark.row(
    "TSK-03",
    clause=("query and documents are encoded, documents ranked by cosine", "ranking equals brute-force cosine"),
)
def test_search_is_that_of_all_angles_and_survives_the_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(500, 16)), rng.normal(size=(4, 16))
    index = Index.of([IndexedText(f"text {place}", f"file:{place}") for place in range(500)], vectors)
    index.save(tmp_path / "index", {})
    angles = (queries @ vectors.T) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(queries, axis=1)[:, None]
    for row, hits in enumerate(Index.load(tmp_path / "index").search(queries, 7)):
        best = np.argsort(-angles[row])[:7]
        assert [hit.document.text for hit in hits] == [f"text {place}" for place in best]
        assert [hit.score for hit in hits] == pytest.approx(angles[row][best], abs=1e-5)


@pytest.mark.row("TSK-03", clause="retrieval@1 on a toy paraphrase set is measured")
def test_a_text_finds_its_partner() -> None:
    assert run_of("vectors").evaluate()["recall@1"].value > 0.8


def test_many_documents_need_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.inference.searching.EXACT", 3)
    index = Index.of([IndexedText(str(place), "") for place in range(4)], np.eye(4))
    with pytest.raises(SpecError, match=r"pip install 'anyformer\[search\]'"):
        index.search(np.eye(4)[:1])


def test_numbers_of_any_size_are_learned_and_answered_in_their_own_units(tmp_path: Path) -> None:
    prices = {"hut": 40_500.5, "house": 250_000.0, "palace": 900_000.0}
    rows = [{"text": f"a {word} number {n}", "label": price + n} for n in range(40) for word, price in prices.items()]
    (file := tmp_path / "prices.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    small = ("model.dim=32", "model.stack.depth=1", "train.batch_tokens=512", "optimizer.lr=1e-2", "train.steps=60")
    run = train(str(file), *small, out=tmp_path / "run", cache=tmp_path / "cache")
    objective = run.recipe.objective
    assert isinstance(objective, Regress) and 390_000 < objective.mean < 405_000 < 1.2 * objective.deviation
    assert objective.loss_unit and f"(number - {objective.mean:.6g}) / {objective.deviation:.6g}" in objective.loss_unit
    scores = run.evaluate()
    assert scores["squared_error"].value < 0.1 * objective.deviation**2
    assert scores["absolute_error"].value < 0.3 * objective.deviation and scores["r2"].value > 0.8
    answer = run.classify(["a palace number 3"])[0].number
    assert answer is not None and 700_000 < answer < 1_100_000
