"""What a spec may hold, told to programs and to people: it must agree with what `decode` takes."""

from typing import Annotated, Any

import pytest

from anyformer.core import Causal, ModelSpec, PartSpec, Range, decode
from anyformer.core.schema import describe, family_name, schema, tables, wording
from anyformer.errors import SpecError
from anyformer.models import Decoder
from anyformer.parts.mixers.attention import Attention
from anyformer.training import Recipe, load, load_recipe
from anyformer.training.recipes.toml_layers import preset_names, read

SCHEMA = schema(Recipe)
TYPES = {"integer": int, "number": int | float, "string": str, "boolean": bool, "array": list, "object": dict}


def fits(value: Any, rule: dict[str, Any]) -> bool:
    """As much of JSON schema as we use."""
    if "$ref" in rule:
        name = rule["$ref"].removeprefix("#/$defs/")
        return fits(value, SCHEMA["$defs"][name])
    kind = rule.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if isinstance(value, dict) and not _fits_table(value, rule):
        return False
    return (
        ("const" not in rule or value == rule["const"])
        and ("enum" not in rule or value in rule["enum"])
        and ("minimum" not in rule or value >= rule["minimum"])
        and ("exclusiveMinimum" not in rule or value > rule["exclusiveMinimum"])
        and ("exclusiveMaximum" not in rule or value < rule["exclusiveMaximum"])
        and ("items" not in rule or all(fits(item, rule["items"]) for item in value))
        and ("oneOf" not in rule or sum(fits(value, choice) for choice in rule["oneOf"]) == 1)
    )


def _fits_table(value: dict[str, Any], rule: dict[str, Any]) -> bool:
    known, rest = rule.get("properties", {}), rule.get("additionalProperties", True)
    extra = [key for key in value if key not in known]
    return (
        all(key in value for key in rule.get("required", ()))
        and all(fits(value[key], known[key]) for key in value if key in known)
        and (rest is not False or not extra)
        and (not isinstance(rest, dict) or all(fits(value[key], rest) for key in extra))
    )


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_the_schema(name: str) -> None:
    assert fits(load_recipe(name).recipe.to_dict(), SCHEMA)


@pytest.mark.parametrize(
    "override",
    [
        "model.dim=0",
        "model.dim=2.5",
        'model.dim="8"',
        "model.dropout=1.0",
        "model.dropout=-0.1",
        "model.droput=0.1",
        "model.stack.layout=layer",
        "model.head.kind=os.system",
        "model.head.scale=two",
        "model.stack.blocks.layer.branches.0.place=before",
        "model.stack.blocks.layer.branches.0.part.bias=yes",
        "model.stack.blocks.layer.branches.0.part.position.base=0",
        "model.stack.blocks.layer.share=3",
    ],
)
def test_the_schema_refuses_what_decode_refuses(override: str) -> None:
    data = read("small", [override]).data
    assert not fits(data, SCHEMA)
    with pytest.raises(SpecError):
        decode(Recipe, data)


def test_the_schema_speaks_of_every_kind_and_field() -> None:
    definitions = SCHEMA["$defs"]
    assert {f"part.{kind}" for kind in PartSpec.kinds} <= definitions.keys()
    heads = definitions["part.attention"]["properties"]["heads"]
    assert heads == {"description": "Query heads.", "type": "integer", "minimum": 1, "default": 4}
    assert definitions["part.attention"]["properties"]["kind"] == {"const": "attention"}
    assert definitions["stack"]["required"] == ["blocks", "depth"]
    assert SCHEMA["$ref"] == "#/$defs/recipe"


def test_options_are_told_in_words() -> None:
    options = {option.name: option for option in describe(Attention)}
    assert options["heads"].type == "integer >= 1"
    assert options["dropout"].type == "number >= 0, < 1"
    assert options["mask"].type == "mask"
    assert options["kv_heads"].default is None
    assert not options["kv_heads"].required
    assert {option.name for option in describe(Decoder) if option.required} == {"dim", "stack"}


def test_containers_and_families_have_names() -> None:
    assert wording(tuple[PartSpec, ...]) == "list of part"
    assert wording(Annotated[float, Range(above=0, high=1)]) == "number > 0, <= 1"
    assert wording(dict[str, int] | None) == "table of integer"
    assert family_name(ModelSpec) == "model"
    assert family_name(Causal) == "causal"


def test_tables_tell_who_reads_what_even_where_data_is_wrong() -> None:
    data = load("small").to_dict() | {"head": {"kind": "no_such"}, "dim": "wide"}
    found = {path: cls for path, cls, _ in tables(ModelSpec, data)}
    assert found[""] is Decoder
    assert found["stack.blocks.layer.branches.0.part"] is Attention
    assert "head" not in found
