"""What is written is what is read, and what was touched is found out."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpus import documents, ready

from anyformer.data.batching.row_plan import NumberFile
from anyformer.data.preparation.shards import MANIFEST, NumberWriter, Prepared
from anyformer.errors import DataError


def test_numbers_come_back_as_they_were_written(tmp_path: Path) -> None:
    writer = NumberWriter(tmp_path / "n.bin", "uint16")
    writer.write(np.arange(5))
    writer.write(np.array([65535]))
    dtype, count, _ = writer.close()
    numbers = NumberFile(tmp_path / "n.bin", dtype, count)
    assert numbers.array.tolist() == [0, 1, 2, 3, 4, 65535]
    assert os.path.getsize(tmp_path / "n.bin") == 12


def test_a_mapped_file_travels_by_name(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "d", documents([4000] * 100))
    side = prepared.split("train").sides["tokens"]
    assert len(side[0]) == 4001 and len(side.tokens.array) > 300_000
    copy = pickle.dumps(prepared.split("train"))
    assert len(copy) < 5000
    assert np.array_equal(pickle.loads(copy).sides["tokens"][3], side[3])


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
@pytest.mark.parametrize("name", ["train.tokens.bin", "train.tokens.index.bin", "tokenizer.json"])
def test_a_harmed_file_is_named(tmp_path: Path, name: str, harm: str) -> None:
    ready(tmp_path / "d", documents([50] * 20))
    file = tmp_path / "d" / name
    content = bytearray(file.read_bytes())
    if harm == "remove":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content if harm == "flip" else content[:-1])
    with pytest.raises(DataError, match=f"{name}.*rebuild=True"):
        Prepared.open(tmp_path / "d")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"files": []}', pytest.param("[" * 100_000, id="deep")]
)
def test_a_broken_manifest_is_no_traceback(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        Prepared.open(tmp_path)
