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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.store.layout import DAEMONS

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "stoker")
COMMON = "common"
TABLES = (COMMON, *DAEMONS)
_loaded: dict[str, Table] = {}
_HEADER = re.compile(r"^\[(\w+)\]$", re.MULTILINE)


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


class Table(Mapping[str, EventType]):
    """The rows of a table by word and former word, each parsed when it is asked for: a start needs few."""

    def __init__(self, text: str) -> None:
        _, *parts = _HEADER.split(text)
        self.texts = dict(zip(parts[::2], parts[1::2], strict=True))
        self._rows: dict[str, EventType] = {}
        former = {word: tomllib.loads(row)["was"] for word, row in self.texts.items() if "\nwas = " in row}
        self._words = {was: word for word, those in former.items() for was in those}
        self._words |= dict(zip(self.texts, self.texts, strict=True))

    def __getitem__(self, word: str) -> EventType:
        word = self._words[word]
        if word not in self._rows:
            self._rows[word] = EventType(word, **tomllib.loads(self.texts[word]))
        return self._rows[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)


def table(name: str) -> Table:
    """Returns the table of a daemon, or `COMMON`."""
    if name not in _loaded:
        _loaded[name] = Table(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    return _loaded[name]


def words(daemon: str) -> set[str]:
    """Returns the words that a daemon records; none for another process."""
    if daemon not in DAEMONS:
        return set()
    shared = {row.word for row in table(COMMON).values() if daemon in row.daemons}
    return shared | table(daemon).texts.keys()


def event_types(daemon: str) -> dict[str, EventType]:
    """Returns what a daemon records, by word; nothing for another process."""
    names = sorted(words(daemon))
    return {word: table(daemon if word in table(daemon).texts else COMMON)[word] for word in names}


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
