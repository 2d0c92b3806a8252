"""The texts that are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.cli.options import plural
from stoker.kit.event_types import event_type, filled
from stoker.kit.terminal import harmless, sentence

LEVELS = ("info", "warning", "error", "none")
MOST_LINES, MOST_CHARS = 20, 160  # of a digest: services cut a text of more than 4 KB

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A text for a route. `names` are the events that it tells, `then` what is known once it is sent."""

    level: str
    pipeline: str
    what: str
    lines: Sequence[str]
    word: str
    names: Sequence[str] = ()
    then: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return harmless(f"{self.level}: {self.pipeline}: {self.what}")

    @property
    def text(self) -> str:
        """The lines, without what no service takes: a file's name may have any bytes."""
        return "\n".join(harmless(line) for line in self.lines if line)


def name_of(event: Event) -> str:
    """Returns what tells an event from all others: after a power cut a number may come again."""
    return f"{event['daemon']}:{event['seq']}, {event['time']}"


def of_event(event: Event, file: str, pipeline: str) -> Message:
    """Returns the message about an event: what happened, what to do, its id."""
    word, level, name = event["event"], event.get("level"), name_of(event)
    level = level if level in LEVELS else "info"  # another version's
    row = event_type(word)
    do = filled(row.do, file, pipeline, lambda key: str(event.get(key, key))) if row and row.do else ""
    lines = (sentence(event), f"To do: {do}" if do else "", name)
    return Message(level, pipeline, row.headline if row else word, lines, word, (name,))


def of_left_out(count: int, file: str, pipeline: str) -> Message:
    """Returns the message about events that are not sent any more."""
    what = f"{plural(count, 'event')} left out"
    lines = (f"{what}: not sent within a day, or gone from the logs", f"see `stoker events {file}`")
    return Message("warning", pipeline, what, lines, "left_out", then={"left_out": 0})


def digest(many: Sequence[Message]) -> Message:
    """Returns one message in place of many: the first in a line each, and a count of the others."""
    level = max((one.level for one in many), key=LEVELS.index)
    briefs = [": ".join((*one.names, one.level, one.lines[0]))[:MOST_CHARS] for one in many]
    lines, rest = briefs[:MOST_LINES], briefs[MOST_LINES:]
    if rest:
        lines.append(f"{len(rest)} more, the last of them {rest[-1]}"[:MOST_CHARS])
    names = [name for one in many for name in one.names]
    then = {key: value for one in many for key, value in one.then.items()}
    return Message(level, many[0].pipeline, f"{len(many)} messages", lines, "digest", names, then)
