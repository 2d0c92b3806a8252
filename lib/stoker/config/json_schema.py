"""The JSON Schema of a pipeline file, by which an editor completes and checks it while it is written."""

from __future__ import annotations

import re
from typing import Any

from stoker.config.load import examples_dir
from stoker.config.problems import every_key, section_at
from stoker.config.reading import AS_WRITTEN
from stoker.config.schema import Pipeline

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# What the loader fills in: no file has to say it.
SETTLED = {"Pipeline": {"state", "hot", "dataset", "tokenizer"}, "ModelShape": {"kv_heads", "ffn_width"}}
SETTLED |= {"Train": {"model"}}


def json_schema() -> dict[str, Any]:
    """Returns the schema of the file as it is written: sizes and durations are texts, a model may be a name.

    What keys have to do with each other, and how large a number may be, only `stoker config check` knows.
    """
    schema = Pipeline.model_json_schema()
    meanings = key_comments()
    for path in [(), *every_key()]:
        if (section := section_at(path)) is None:
            continue
        body = schema if section is Pipeline else schema["$defs"][section.__name__]
        written = section.model_construct().model_dump(mode="json", context=AS_WRITTEN, warnings=False)
        for name, about in body["properties"].items():
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
    return {"$schema": DIALECT, **schema, "title": "Stoker pipeline"}


def key_comments() -> dict[str, str]:
    """Returns the comments of the full example by dotted key, also of keys that are commented out there."""
    found, path = dict[str, str](), list[tuple[int, str]]()
    for line in (examples_dir() / "fineweb.yaml").read_text().splitlines():
        if match := re.match(r"( {0,12})(?:# ( *))?(\w+):(?!\S)(?:.*?\s# (.*))?", line):
            indent = len(match[1]) + len(match[2] or "")
            path = [*(each for each in path if each[0] < indent), (indent, match[3])]
            found[".".join(name for _, name in path)] = match[4] or ""
        elif path and (more := re.match(r" {20,}# (.*)", line)):
            found[".".join(name for _, name in path)] += f" {more[1]}"
    return found
