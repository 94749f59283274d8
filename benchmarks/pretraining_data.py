"""The data of "Pre-training, three ways": the text of the pre-training, three tasks, and what the two share.

Made from descriptions.jsonl.gz, speeches.jsonl.gz and sentiment.jsonl.gz, which name their splits. The pre-training
text is the training split of descriptions and speeches, without every text that shares a whole line with a validation
or test text of a task. Short texts are joined and long ones cut, so that all pieces are about equally long and no model
computes much padding.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.data.checks.overlap import Overlap, OverlapSearch
from anyformer.data.record import Record
from anyformer.errors import SpecError

Row = dict[str, Any]
DESCRIPTIONS, SPEECHES, SENTIMENT = FILES = ("descriptions.jsonl.gz", "speeches.jsonl.gz", "sentiment.jsonl.gz")
TEXT = "text.jsonl"
"""File of the pre-training text."""
PIECE = 850
"""Characters of a piece of the pre-training text, at most."""
CLASSES, LABELLED, PAIRS = 20, 4000, 8000
"""Largest sections, labelled descriptions and pairs of description and synopsis for training."""
DROPPED = "dropped.jsonl"
"""File with the number of training texts that are left out."""
SETTINGS = "data.json"
"""File with the settings that the data were made with."""
LONG_LINE = 40
"""Letters of the shortest line that is compared."""
LEAST_LETTERS = 20
"""Shorter synopses are not searched in the pre-training text: they are equal by chance."""
_NO_LETTER = re.compile(r"[\W\d_]+")


def write_all(data: Path, folder: Path, every: int = 1) -> None:
    """Writes the files of the pre-training and of the tasks, unless they are there, from every n-th row of the data.
    A folder with data of other settings is refused."""
    settings = data_settings(every)
    if (folder / TEXT).is_file():
        stored = read(folder / SETTINGS)[0] if (folder / SETTINGS).is_file() else {}
        refuse_difference(folder, stored, settings)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / SETTINGS, [settings])
    packages = read(data / DESCRIPTIONS)[::every]
    tasks = {"sentiment": sentiment(read(data / SENTIMENT)[::every]), "sections": sections(packages)}
    tasks["synopses"] = synopses(packages)
    for name, rows in tasks.items():
        write(folder / f"{name}.jsonl", rows)
    held_out_texts = [row["text"] for rows in tasks.values() for row in rows if row["split"] != "train"]
    held_out = {line for text in held_out_texts for line in lines(text)}
    sources = [[(one["split"], one["text"]) for one in read(data / SPEECHES)[::every]]]
    sources.append([(one["split"], one["description"]) for one in packages])
    pieces, dropped = list[Row](), 0
    for split, texts in ((split, texts) for split in ("train", "valid") for texts in sources):
        there = [text for name, text in texts if name == split]
        kept = [text for text in there if split != "train" or held_out.isdisjoint(lines(text))]
        dropped += len(there) - len(kept)
        pieces += [{"split": split, "text": piece} for piece in cut(kept, PIECE)]
    write(folder / DROPPED, [{"dropped": dropped, "texts": sum(name == "train" for one in sources for name, _ in one)}])
    write(folder / TEXT, pieces)


def data_settings(every: int) -> dict[str, int]:
    """The settings of the data, as they are stored beside the data and with the results."""
    return {
        "every": every, "piece": PIECE, "classes": CLASSES, "labelled": LABELLED, "pairs": PAIRS,
        "long_line": LONG_LINE,
    }  # fmt: skip


def refuse_difference(place: Path, stored: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """An error that names the settings that differ from the stored ones, if any."""
    keys = sorted(stored.keys() | present.keys())
    values = [(key, stored.get(key), present.get(key)) for key in keys if stored.get(key) != present.get(key)]
    differences = [key if isinstance(now, dict) else f"{key}={before}, now {now}" for key, before, now in values]
    if differences:
        listed = "; ".join(differences)
        raise SpecError(f"{place}: stored with other settings ({listed}). Name another place, or remove this one.")


def sentiment(rows: Iterable[Row]) -> list[Row]:
    """Product reviews and tweets, positive or negative."""
    return [{"split": one["split"], "text": one["text"], "label": one["label"]} for one in rows]


def sections(packages: Sequence[Row]) -> list[Row]:
    """Few descriptions of packages in the largest sections, with the section as label."""
    sizes = Counter(one["section"] for one in packages if one["split"] == "train")
    largest = {section for section, _ in sizes.most_common(CLASSES)}
    return [
        {"split": one["split"], "text": one["description"], "label": one["section"]}
        for one in few([one for one in packages if one["section"] in largest], LABELLED)
    ]


def synopses(packages: Sequence[Row]) -> list[Row]:
    """Some descriptions of packages, with the synopsis as target."""
    return [
        {"split": one["split"], "text": one["description"], "target": one["synopsis"]} for one in few(packages, PAIRS)
    ]


def few(rows: Sequence[Row], count: int) -> list[Row]:
    """As many training rows, evenly spread, and all that are held out."""
    training = [row for row in rows if row["split"] == "train"]
    return training[:: max(1, len(training) // count)][:count] + [row for row in rows if row["split"] != "train"]


def cut(texts: Iterable[str], size: int) -> Iterator[str]:
    """The texts one after the other, cut at white space into pieces of at most `size` characters."""
    text, start = "\n\n".join(texts), 0
    while start < len(text):
        end = start + size
        if end < len(text):
            space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
            end = space + 1 if space > start else end
        if piece := text[start:end].strip():
            yield piece
        start = end


def shared(folder: Path, tasks: Iterable[str]) -> dict[str, Any]:
    """What the test texts of each task share with the pre-training text, and the test synopses that stand in it."""
    pieces = [row["text"] for row in read(folder / TEXT) if row["split"] == "train"]
    facts: dict[str, Any] = dict(read(folder / DROPPED)[0])
    for name in tasks:
        tests = [row for row in read(folder / f"{name}.jsonl") if row["split"] == "test"]
        search = OverlapSearch(Overlap(most=0.0, marks=5_000_000))
        for number, text in enumerate(pieces):
            search.see(Record(text=text, where=f"piece {number}"), "train")
        for number, row in enumerate(tests):
            search.see(Record(text=row["text"], where=f"test {number}"), "test")
        warnings = [text.split(": ", 1)[1].split(". Take")[0] for text, _ in search.warnings()]
        facts[name] = {"tests": len(tests), "shared": warnings[0] if warnings else "nothing"}
    whole = "\n".join(letters(piece) for piece in pieces)
    targets = [letters(row["target"]) for row in read(folder / "synopses.jsonl") if row["split"] == "test"]
    long = [target for target in targets if len(target) >= LEAST_LETTERS]
    facts["targets"] = {"long": len(long), "present": sum(target in whole for target in long)}
    return facts


def lines(text: str) -> set[str]:
    """The letters of each line that is long enough to be nobody else's by chance, and of the whole text."""
    return {line for part in (*text.split("\n"), text) if len(line := letters(part)) >= LONG_LINE}


def letters(text: str) -> str:
    """The letters of a text in lower case, by which texts are compared."""
    return _NO_LETTER.sub("", text.lower())


def sizes_of(folder: Path, tasks: Iterable[str]) -> dict[str, dict[str, int]]:
    """Number of texts of each split of each task."""
    return {name: dict(Counter(row["split"] for row in read(folder / f"{name}.jsonl"))) for name in tasks}


def read(file: Path) -> list[Row]:
    """The rows of a file of JSON lines, which may be compressed."""
    plain = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in plain.decode("utf-8").split("\n") if line]


def write(file: Path, rows: Iterable[Row]) -> None:
    """Writes rows as JSON lines; the file is complete as soon as it exists."""
    fresh = file.with_suffix(".part")
    fresh.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    fresh.replace(file)
