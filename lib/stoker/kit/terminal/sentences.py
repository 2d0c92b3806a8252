"""Events as sentences, for a person at a terminal; files, pipes and the journal get key=value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stoker.config.units import format_bytes, format_count, format_duration

HIDDEN = frozenset({"time", "seq", "event", "level", "pipeline", "daemon", "prev", "v"})
MEANING = ("message", "reason")  # fields that are sentences themselves
PHRASES = {"steps": "all its steps are done", "data_exhausted": "the data is used up"}  # why a run finished
SUM_DIGITS = 12
_SUM = re.compile(rf"\b([0-9a-f]{{{SUM_DIGITS}}})[0-9a-f]{{28,52}}\b")  # SHA-1 and SHA-256
AS_USUAL = (("dropped", 0), ("exit_code", 0))  # fields not worth a word
_UNIT = re.compile("_bytes$|(?<!_per)_s$")  # of a field's name; its value is told with one
_OPTIONAL = re.compile(r"\[([^][]*)\]")

# The everyday events; every other one, and one without a field that its sentence names, gets a generic form.
# {field} is the field as a person writes it, {field:noun} a number of nouns; [...] is left out where a field
# in it is missing.
SENTENCES = {
    "checkpoint_proven": "checkpoint of step {step} is proven whole",
    "checkpoint_quarantined": "{path} set aside: {reason}; {message}",
    "daemon_failed": "the daemon ended with an error: {message}",
    "daemon_ready": "{message}",
    "dataset_complete": "dataset {dataset} is complete: {files:file}",
    "dataset_pinned": "dataset {dataset} version {version} begins: tokenizer with {vocab_size:token}",
    "drained": "{message}",
    "file_verified": "{path} verified, {size}",
    "progress": "{message}",
    "run_finished": "the run is finished[ at step {step}]: {message}",
    "run_progress": "step {step} of {steps}[, loss {loss}][, held out {val_loss}][, {tokens_per_s} tokens/s]"
    "[, {eta_s} left]",
    "source_proven": "{path} built: {tokens:token} of {documents:document}[, {dropped:row} dropped]",
    "source_quarantined": "{path} quarantined: {reason}[, column {column}][, row group {row_group}]"
    "[: {detail}]",
    "storage_trouble": "{message}",
    "trainer_exited": "the trainer ended at step {step}: {message}",
    "trainer_launched": "trainer started from step {resume_step}[, until step {until}]",
}


class _Words:
    """A field as a person writes it; a format specification is the noun that a number counts."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __format__(self, noun: str) -> str:
        return f"{self!s} {noun}{'' if self.value == 1 else 's'}" if noun else str(self)

    def __str__(self) -> str:
        name, value = self.name, self.value
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            return _number(name, value)
        if isinstance(value, list | tuple):
            return ", ".join(str(_Words(name, each)) for each in value) or "none"
        if isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False, default=str)
        text = str(value)
        if name == "message":
            return PHRASES.get(text, text)
        return text.replace("_", " ") if name == "reason" and re.fullmatch("[a-z_]+", text) else text


def _number(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return format_count(value)
    if name.endswith("_s"):
        return format_duration(value)
    if name in ("size", "bytes") or name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:,.4f}"
    return str(value) if name in ("pid", "pids") else f"{value:,}"


def sentence(event: Mapping[str, Any]) -> str:
    """An event on one line, harmless to a terminal: names come from outside, line breaks and all."""
    word = str(event.get("event"))
    fields = {
        name: _Words(name, value)
        for name, value in event.items()
        if name not in HIDDEN and value not in (None, "", []) and (name, value) not in AS_USUAL
    }
    try:
        template = _OPTIONAL.sub(lambda part: _filled(part[1], fields), SENTENCES[word])
        text = template.format_map(fields)
    except KeyError:
        text = _generic(word, fields)
    return harmless(cut_sums(text))


def _filled(part: str, fields: Mapping[str, _Words]) -> str:
    """An optional part, still a template, or nothing where a field of it is missing."""
    return part if set(re.findall(r"\{(\w+)", part)) <= fields.keys() else ""


def _generic(word: str, fields: Mapping[str, _Words]) -> str:
    text = word.replace("_", " ") + (f" {fields['path']}" if "path" in fields else "")
    meaning = "; ".join(str(fields[name]) for name in reversed(MEANING) if name in fields)
    rest = [
        f"{_UNIT.sub('', name).replace('_', ' ')} {value}"
        for name, value in fields.items()
        if name not in (*MEANING, "path")
    ]
    more = ", ".join(filter(None, [meaning, *rest]))
    return f"{text}: {more}" if more else text


def cut_sums(text: str) -> str:
    """The text with its hexadecimal sums cut to their first digits."""
    return _SUM.sub(r"\1", text)


def harmless(text: str) -> str:
    """On one line, with nothing that a terminal obeys."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
