"""The JSON Schema of a pipeline file, docs/pipeline.schema.json: an editor completes and checks by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from stoker.config import reading, units
from stoker.config.load import examples_dir
from stoker.config.problems import every_key, section_at
from stoker.config.reading import AS_WRITTEN
from stoker.config.schema import Pipeline

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# What the loader fills in: no file has to say it.
SETTLED = {
    "Pipeline": {"state", "hot", "dataset", "tokenizer"},
    "ModelShape": {"kv_heads", "ffn_width"},
    "Train": {"model"},
}
DIGITS = r"\d+(\.\d+)?([eE][+-]?\d{1,3})?"


def one_of(*words: str, number: str = "", units: Iterable[str] = ()) -> str:
    """Returns the pattern of these words, or of a number with a unit."""
    numbers = [f"{number}\\s*({'|'.join(units)})"] if number else []
    return f"^({'|'.join([*words, *numbers])})$"


COUNTS = {"number": DIGITS, "units": units.COUNT_UNITS}
WORD = {"type": ["string", "number", "boolean"]}
# By the function that reads a value: the pattern of it as a text, and what else it may be.
WRITTEN: Mapping[Callable[..., Any], tuple[str, list[dict[str, Any]]]] = {
    reading.read_count: (one_of(**COUNTS), [{"type": "integer"}]),
    reading.read_size: (one_of(number=DIGITS, units=units.SIZE_UNITS), [{"type": "integer"}]),
    reading.read_duration: (rf"^(0|(\d+(\.\d+)?({'|'.join(units.DURATION_UNITS)}))+)$", [{"const": 0}]),
    reading.read_number: (one_of(number=r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"), [{"type": "number"}]),
    reading.read_flag: (one_of("true", "false", "yes", "no", "on", "off"), [{"type": "boolean"}]),
    reading.read_word: ("", [{"type": ["number", "boolean"]}]),
    reading.read_words: ("", [{"type": "array", "items": WORD}]),
    reading.read_auto_or_count: (one_of("auto", **COUNTS), [{"type": "integer"}]),
    reading.read_epochs: (one_of("unlimited", **COUNTS), [{"type": "integer"}, {"type": "null"}]),
    reading.read_precision: (one_of("auto", "float32", "fp32", "bfloat16", "bf16"), []),
}
LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class AsWritten(GenerateJsonSchema):
    """The schema of values as the file has them: a size is a text, or a number."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> dict[str, Any]:
        """Returns the schema of what a function of `stoker.config.reading` reads."""
        if (known := WRITTEN.get(schema["function"]["function"])) is None:
            return super().function_before_schema(schema)
        pattern, others = known
        text = {"type": "string"} | ({"pattern": pattern} if pattern else {})
        return {"anyOf": [text, *others]} if others else text


def json_schema(meanings: Mapping[str, str]) -> str:
    """Returns the schema, with these meanings of dotted keys.

    What keys have to do with each other, and how large a number may be, `stoker config check` knows alone.
    """
    schema = Pipeline.model_json_schema(schema_generator=AsWritten)
    for path in [(), *every_key()]:
        if (section := section_at(path)) is None:
            continue
        body = schema if section is Pipeline else schema["$defs"][section.__name__]
        written = section.model_construct().model_dump(mode="json", context=AS_WRITTEN, warnings=False)
        for name, about in body["properties"].items():
            about.pop("title", None)
            if "default" in about:
                about["default"] = written[name]
            if meaning := meanings.get(".".join(map(str, (*path, name)))):
                about["description"] = meaning
        needed = set(body.get("required", ())) - SETTLED.get(section.__name__, set())
        body["required"] = [name for name in body["properties"] if name in needed]
    shape, train = (schema["$defs"][name]["properties"] for name in ("ModelShape", "Train"))
    shape["ffn"] = shape["ffn_width"]  # the file's name of it
    models = sorted(path.stem for path in (examples_dir() / "models").glob("*.yaml"))
    train["model"]["anyOf"] = [{"enum": models}, {"$ref": train["model"].pop("$ref")}]
    whole = {"$schema": DIALECT, **limited(schema), "title": "Stoker pipeline"}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def limited(value: Any) -> Any:
    """Returns a schema with its limits under the names of JSON Schema, where pydantic has left its own."""
    if isinstance(value, dict):
        return {LIMITS.get(key, key): limited(inner) for key, inner in value.items()}
    return [limited(inner) for inner in value] if isinstance(value, list) else value
