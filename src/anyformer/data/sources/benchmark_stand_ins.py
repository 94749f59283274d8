"""Generated rows in the form of the files of a downstream suite: small worlds in which every answer is known."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from anyformer.data.sources.number_words import ENGLISH, GERMAN
from anyformer.data.sources.pronouns import SCENES

PEOPLE = ("Ann", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Klara", "Leo")
PLACES = ("garden", "kitchen", "library", "market", "school", "station", "harbour", "museum", "theatre", "forest")
CITIES = ("Berlin", "Lyon", "Porto", "Oslo", "Turin", "Vienna", "Cork", "Gdansk", "Bergen", "Ghent")
EVENTS = (
    ("The glass fell from the table.", "The glass broke."), ("It rained all night.", "The street was wet."),
    ("The baby was hungry.", "The baby cried."), ("The sun came out.", "The snow melted."),
    ("The alarm rang.", "Everybody left the building."), ("The boy forgot his coat.", "The boy was cold."),
    ("The team trained hard.", "The team won the match."), ("The battery was empty.", "The phone went off."),
    ("The wind blew hard.", "The tree fell over."), ("The lamp broke.", "The room became dark."),
)  # fmt: skip
"""Cause and effect."""
SENSES = {
    "bank": (("the boat lay at the {}", "we sat on the grassy {}"), ("the {} lends money", "she works for a {}")),
    "bat": (("a {} flew out of the cave", "the {} hunts at night"), ("he swung the {}", "the {} is made of wood")),
    "spring": (
        ("flowers bloom in {}", "birds return in {}"),
        ("the {} of the watch broke", "a metal {} is in the bed"),
    ),
    "match": (("she lit a {}", "the {} burned out"), ("they lost the {}", "the {} ended in a draw")),
    "seal": (("the {} swam to the ice", "a {} caught a fish"), ("the {} on the letter was broken", "the {} is of wax")),
}
"""A word with two senses, and sentences for each."""
GERMAN_PLACES = {
    "garden": "im Garten", "kitchen": "in der Küche", "market": "auf dem Markt", "school": "in der Schule",
}  # fmt: skip
Row = dict[str, Any]


def _world(rng: Random) -> tuple[dict[str, str], str]:
    """Who is where, each in a place of their own, and a text that says so."""
    where = dict(zip(rng.sample(PEOPLE, 4), rng.sample(PLACES, 4), strict=True))
    return where, " ".join(f"{person} is in the {place}." for person, place in where.items())


def _claim(rng: Random) -> tuple[str, str, str, bool]:
    """A text, and a person and a place of it that belong together or not."""
    where, text = _world(rng)
    person, right = rng.choice(list(where)), rng.random() < 0.5
    places = [place for place in where.values() if (place == where[person]) == right]
    return text, person, rng.choice(places), right


def boolq(rng: Random) -> Row:
    text, person, place, right = _claim(rng)
    return {"question": f"is {person} in the {place}", "passage": text, "label": right}


def cb(rng: Random) -> Row:
    (person, other), (place, elsewhere) = rng.sample(PEOPLE, 2), rng.sample(PLACES, 2)
    label = rng.choice(("entailment", "contradiction", "neutral"))
    who, where = {"entailment": (person, place), "contradiction": (person, elsewhere), "neutral": (other, place)}[label]
    premise = f"{person} went to the {place} and is still there."
    return {"premise": premise, "hypothesis": f"{who} is in the {where}.", "label": label}


def copa(rng: Random) -> Row:
    (cause, effect), wrong = rng.sample(EVENTS, 2)
    question, label = rng.choice(("cause", "effect")), rng.randrange(2)
    premise, right = (effect, cause) if question == "cause" else (cause, effect)
    choices = [right, wrong[question == "effect"]]
    choices = choices[::-1] if label else choices
    return {"premise": premise, "choice1": choices[0], "choice2": choices[1], "question": question, "label": label}


def multirc(rng: Random) -> Row:
    where, text = _world(rng)
    chosen = rng.sample(list(where.values()), 2)
    answers = [{"text": person, "label": int(place in chosen)} for person, place in where.items()]
    question = f"Who is in the {chosen[0]} or in the {chosen[1]}?"
    return {"passage": {"text": text, "questions": [{"question": question, "answers": answers}]}}


def record(rng: Random) -> Row:
    where, text = _world(rng)
    person = rng.choice(list(where))
    starts = [text.index(f"{name} is") for name in where]
    entities = [{"start": start, "end": start + len(name) - 1} for start, name in zip(starts, where, strict=True)]
    query = f"@placeholder was seen in the {where[person]}."
    return {"passage": {"text": text, "entities": entities}, "qas": [{"query": query, "answers": [{"text": person}]}]}


def rte(rng: Random) -> Row:
    text, person, place, right = _claim(rng)
    label = "entailment" if right else "not_entailment"
    return {"premise": text, "hypothesis": f"{person} is in the {place}.", "label": label}


def wic(rng: Random) -> Row:
    word, senses = rng.choice(list(SENSES.items()))
    same, first = rng.random() < 0.5, rng.randrange(2)
    one, two = rng.sample(senses[first], 2) if same else (rng.choice(senses[first]), rng.choice(senses[1 - first]))
    return {"word": word, "sentence1": one.format(word), "sentence2": two.format(word), "label": same}


def wsc(rng: Random) -> Row:
    sentence, *lists = rng.choice(SCENES)
    nouns, sense, right = [rng.choice(names.split()) for names in lists[:2]], rng.randrange(2), rng.random() < 0.5
    text = f"{sentence.format(*nouns)} {rng.choice(lists[2 + sense].split())}"
    noun = nouns[sense if right else 1 - sense]
    spans = {"span1_text": noun, "span1_index": text.split().index(noun), "span2_text": "it"}
    return {"text": text, "target": {**spans, "span2_index": text.split().index("it")}, "label": right}


def xsum(rng: Random) -> Row:
    person, stops = rng.choice(PEOPLE), rng.sample(PLACES, rng.randint(3, 6))
    steps = [f"Then {person} walked on to the {place}." for place in stops[1:]]
    document = " ".join([f"{person} left the {stops[0]} in the morning.", *steps])
    return {"document": document, "summary": f"{person} went from the {stops[0]} to the {stops[-1]}."}


def webquestions(rng: Random) -> Row:
    first, second = rng.sample(PEOPLE, 2)
    city = Random(f"{first} {second}").choice(CITIES)  # a fact of the world, whichever question asks for it
    forms = ("where does {} live?", "what city is {} from?", "in which city can i find {}?", "what is the home of {}?")
    return {"question": rng.choice(forms).format(f"{first} {second}son"), "answers": [city]}


def wmt_en_de(rng: Random) -> Row:
    person, number, place = rng.choice(PEOPLE), rng.randrange(2, len(ENGLISH)), rng.choice(list(GERMAN_PLACES))
    english = f"{person} saw {ENGLISH[number]} children in the {place}."
    return {"en": english, "de": f"{person} sah {GERMAN_PLACES[place]} {GERMAN[number]} Kinder."}


STAND_INS: Mapping[str, Callable[[Random], Row]] = {
    "boolq": boolq, "cb": cb, "copa": copa, "multirc": multirc, "record": record, "rte": rte, "wic": wic, "wsc": wsc,
    "xsum": xsum, "webquestions": webquestions, "wmt_en_de": wmt_en_de,
}  # fmt: skip
"""Task -> a row drawn at random, in the form of its file."""
