"""Ours and theirs get the same texts, and the same tokens count."""

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import torch
from benchmarks.harness import Bench
from benchmarks.trainers import real_tokens, trainer_of

from benchmarks import corpus, mlm, seq2seq

TINY = Bench(size="tiny")


def test_tokens_of_text_are_counted_alike_in_ours_and_in_theirs(tmp_path: Path) -> None:
    made = []
    for recipe in (seq2seq.recipe, seq2seq.apart):
        target, told = recipe(TINY, tmp_path, seq2seq.SIZES["tiny"])
        made.append(trainer_of(target, [*told, "data.source.count=300"], tmp_path / "cache", TINY.device))
    packed, apart = made
    assert packed.prepared.packed_pairs and not apart.prepared.packed_pairs
    batches = list(islice(seq2seq.feed_of(packed, apart.prepared), 4))
    theirs = [real_tokens(seq2seq.inputs(ready.batch), seq2seq.MARKS) for ready in batches]
    assert theirs == [ready.tokens for ready in batches]
    epochs = [replace(trainer.feed(), loader=replace(trainer.feed().loader, epochs=1)) for trainer in made]
    assert len({sum(ready.tokens for ready in feed) for feed in epochs}) == 1


def test_what_was_prepared_is_found_by_another_run_with_files_elsewhere(tmp_path: Path) -> None:
    found, bench = [], Bench(size="tiny", cache=tmp_path / "kept")
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        recipe = mlm.recipe(bench, folder, mlm.SIZES["tiny"])
        trainer = trainer_of(*recipe, corpus.prepared_in(bench, folder), bench.device)
        found.append((trainer.prepared.folder, trainer.prepared.manifest.fingerprint))
    assert found[0] == found[1] and len([*(tmp_path / "kept").glob("*.lock")]) == 1


def test_rows_of_like_lengths_fill_the_tokens_of_an_update() -> None:
    texts = [torch.zeros(length, dtype=torch.long) for length in sorted(range(1, 33))]
    groups = mlm.by_tokens(texts, {"tokens": 64})
    assert sum(map(len, groups)) == len(texts)
    assert all(len(group) * len(group[-1]) <= 64 for group in groups)
    assert all((len(one) + 1) * len(two[0]) > 64 for one, two in pairwise(groups))
