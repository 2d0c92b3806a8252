"""The types of events: a row for every word that a daemon records or logs, in a TOML table per daemon.

`common.toml` has the words of several daemons: `daemons` names them if it is not all; with [] a word is in
the log alone. From a row follow the event's level, the line of terminal and journal, the label of
`stoker_events_total`, exported at 0 from the start, and deploy/systemd/stoker.catalog (scripts/catalog).
In its texts FILE is the pipeline's file, NAME its name, {path} the event's field `path`.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.store.layout import DAEMONS

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "stoker")
COMMON = "common"
TABLES = (COMMON, *DAEMONS)
_loaded: dict[str, Mapping[str, EventType]] = {}  # the tables that were read, also by former words


@dataclass(frozen=True)
class EventType:
    """A row of the tables.

    `headline` is part of a sentence; `meaning`, `check` and `do` are plain sentences.
    `alert` names the alert whose section of the runbook has the sentence of `do`.
    `line` is what a terminal shows: {field}, {field:noun} for a number of nouns, [...] is left out where one
    of its fields is missing. Without it, or without a field of it, that is the headline and the fields.
    `was` are words of earlier versions, which events on disk still have.
    A routine word is one of many alike when all is well: the journal gets the first, then one line a minute.
    """

    word: str
    level: str
    headline: str
    meaning: str = ""
    check: str = ""
    do: str = ""
    alert: str = ""
    line: str = ""
    line_unproven: str = ""  # of a file that nothing vouches for: its event has no field `how`
    routine: bool = False
    was: Sequence[str] = ()
    daemons: Sequence[str] = DAEMONS


def table(name: str) -> Mapping[str, EventType]:
    """Returns the rows of a table by word and former word."""
    if name not in _loaded:
        rows = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
        types = [EventType(word, **row) for word, row in rows.items()]
        _loaded[name] = {word: each for each in types for word in (each.word, *each.was)}
    return _loaded[name]


def event_types(daemon: str) -> dict[str, EventType]:
    """Returns what a daemon records, by word; nothing for another process."""
    if daemon not in DAEMONS:
        return {}
    shared = (row for row in table(COMMON).values() if daemon in row.daemons)
    return {row.word: row for row in (*shared, *table(daemon).values())}


def event_type(word: str) -> EventType | None:
    """Returns the row of a word or a former word."""
    # Loaded tables come first: a daemon reads those of the others only for a word that is none of its own.
    return next((found for name in (*_loaded, *TABLES) if (found := table(name).get(word))), None)


def register() -> dict[str, EventType]:
    """Returns every row by its word, including those of the log alone."""
    return {row.word: row for name in TABLES for row in table(name).values()}


def message_id(word: str) -> str:
    """Returns the MESSAGE_ID of a word: 32 hex digits, RFC 9562's UUID of version 5."""
    return uuid.uuid5(NAMESPACE, word).hex


def filled(text: str, file: str, name: str, field: Callable[[str], str]) -> str:
    """Returns a text with the pipeline's file and name, and the fields by `field`."""
    of = {"FILE": file, "NAME": name}
    text = re.sub(r"\b(FILE|NAME)\b", lambda word: of[word[0]], text)
    return re.sub(r"\{(\w+)\}", lambda named: field(named[1]), text)
