"""Writes the effective configuration (defaults, file and environment) as a pipeline file that can be read."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import SecretStr

from stoker.config.reading import AS_WRITTEN
from stoker.config.schema import OF_DATA, Pipeline
from stoker.config.schema_train import OF_BUILT_IN

MASK = "********"
_SECRET_KEY = re.compile(r"^(notify|url|heartbeat)$|(^|_)(token|secret|password|key)$")


def effective_yaml(pipeline: Pipeline) -> str:
    """Returns the whole configuration as YAML, with possible secrets masked."""
    shown = pipeline.model_dump(context=AS_WRITTEN)
    shown["plan"]["epochs"] = shown["plan"]["epochs"] or "unlimited"
    # A tokenizer is either trained or given: the other key as null would look like a contradiction.
    shown["tokenizer"] = {name: value for name, value in shown["tokenizer"].items() if value is not None}
    if pipeline.dataset.tokens_column is not None:
        _leave_out(shown, "dataset.text_column", "dataset.filters.min_chars")
    if not pipeline.train.follows_plan:
        _leave_out(shown, *OF_BUILT_IN)
    if not pipeline.has_data:
        _leave_out(shown, *OF_DATA)
    text: str = yaml.dump(
        masked("", shown),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )
    return text


def recorded(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the whole configuration for a record, without secrets.

    A masked value has 16 bits of a checksum: enough that another secret shows, too few to find it by.
    """

    def marked(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: marked(key, inner) for key, inner in value.items()}
        shown = json.dumps(masked(name, value), ensure_ascii=False)
        if shown == (whole := json.dumps(value, ensure_ascii=False)):
            return value
        return f"{shown} #{zlib.crc32(whole.encode()) & 0xFFFF:04x}"

    shown: dict[str, Any] = marked("", pipeline.model_dump(mode="json", context=AS_WRITTEN))
    return shown


def _leave_out(shown: dict[str, Any], *keys: str) -> None:
    for key in keys:
        *sections, last = key.split(".")
        holder = shown
        for section in sections:
            holder = holder[section]
        del holder[last]


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    tuple, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def masked(name: str, value: Any) -> Any:
    """Returns a value with passwords in URLs masked, and the values of keys with secret-like names."""
    if isinstance(value, Mapping):
        return {key: masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(masked(name, inner) for inner in _without_secret_words(value))
    if isinstance(value, Path | SecretStr):
        return str(value)
    if not isinstance(value, str):
        return value
    if _SECRET_KEY.search(name):
        return MASK
    return _url_without_secrets(value)


def _without_secret_words(words: Sequence[Any]) -> Iterator[Any]:
    """Yields the words of a command with `--token=...`, the word after a `--token`, and URLs masked."""
    is_secret = False
    for word in words:
        option, equals, value = str(word).partition("=") if isinstance(word, str) else (word, "", "")
        name = str(option).lower().replace("-", "_")
        is_named = name.startswith("_") and _SECRET_KEY.search(name) is not None
        shown = f"{option}={MASK if is_named else _url_without_secrets(value)}" if equals else word
        yield MASK if is_secret else shown
        is_secret = is_named and not equals


def _url_without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host[2]}" if host[1] else parts.netloc
    return parts._replace(netloc=netloc, query=MASK if parts.query else "").geturl()
