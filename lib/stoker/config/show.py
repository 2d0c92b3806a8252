"""Writes the effective configuration (defaults, file and environment) as a pipeline file that can be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import yaml

from stoker.config import reading, units
from stoker.config.schema import Pipeline, Section

MASK = "********"
_SECRET_KEY = re.compile(r"^notify$|(^|_)(token|secret|password|key)$")
_WRITERS = {
    reading.read_size: units.write_size,
    reading.read_count: units.write_count,
    reading.read_duration: units.write_duration,
}


def effective_yaml(pipeline: Pipeline) -> str:
    """Returns the whole configuration as YAML, with possible secrets masked."""
    text: str = yaml.dump(
        _section(pipeline),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    tuple, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _section(section: Section) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name == "epochs" and value is None:
            shown[name] = "unlimited"
        elif isinstance(value, Section):
            shown[name] = _section(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            shown[name] = _number(value, [*field.metadata, *_inner_metadata(field.annotation)])
        else:
            shown[name] = masked(name, value)
    # A tokenizer is either trained or given: the other key as null would look like a contradiction.
    return {
        name: value for name, value in shown.items() if value is not None or name not in ("train", "file")
    }


def _inner_metadata(annotation: Any) -> list[Any]:
    """Returns the markers of `Annotated[...] | None`, which pydantic leaves inside the union."""
    return [mark for arm in get_args(annotation) for mark in getattr(arm, "__metadata__", ())]


def _number(value: int | float, metadata: list[Any]) -> Any:
    for mark in metadata:
        writer: Any = _WRITERS.get(getattr(mark, "func", None))  # type: ignore[arg-type]
        if writer is not None:
            written: str = writer(value)
            return int(written) if written.isdigit() else written
    return value


def masked(name: str, value: Any) -> Any:
    """Returns a value with passwords in URLs masked, and the values of keys with secret-like names."""
    if isinstance(value, Mapping):
        return {key: masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(masked(name, inner) for inner in value)
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str):
        return value
    if _SECRET_KEY.search(name):
        return MASK
    return _url_without_secrets(value)


def _url_without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host[2]}" if host[1] else parts.netloc
    return parts._replace(netloc=netloc, query=MASK if parts.query else "").geturl()
