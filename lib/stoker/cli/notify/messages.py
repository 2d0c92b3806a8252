"""The texts that are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.cli.options import plural
from stoker.kit.event_types import event_type, filled
from stoker.kit.terminal import harmless, sentence
from stoker.observe.verdict import Finding, Verdict

LEVELS = ("info", "warning", "error", "none")
MOST_LINES, MOST_CHARS = 20, 160  # of a digest: services cut a text of more than 4 KB


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
    brief: str = ""  # in a digest

    @property
    def title(self) -> str:
        return harmless(f"{self.level}: {self.pipeline}: {self.what}")

    @property
    def text(self) -> str:
        """The lines, without what no service takes: a file's name may have any bytes."""
        return "\n".join(harmless(line) for line in self.lines if line)


def of_event(event: Mapping[str, Any], name: str, file: str, pipeline: str) -> Message:
    """Returns the message about an event: what happened, what to do, its id."""
    word, level = event["event"], event.get("level")
    level = level if level in LEVELS else "info"  # another version's
    row, what, number = event_type(word), sentence(event), f"{event['daemon']}:{event['seq']}"
    do = filled(row.do, file, pipeline, lambda key: str(event.get(key, key))) if row and row.do else ""
    lines = (what, f"To do: {do}" if do else "", f"{number}, {event['time']}")
    headline, brief = row.headline if row else word, f"{number} {level}: {what}"
    return Message(level, pipeline, headline, lines, word, (name,), brief=brief)


def of_verdict(
    pipeline: str, judged: Verdict, level: str, new: Sequence[Finding], then: Mapping[str, Any]
) -> Message:
    """Returns the message about a changed verdict, with what needs a hand now and did not before."""
    lines = [line for each in new for line in (each.what, f"To do: {each.do}" if each.do else "")]
    word = " ".join(each.event or each.what for each in new) or "well"
    return Message(level, pipeline, judged.text, lines or ["nothing needs a hand any more"], word, then=then)


def of_left_out(count: int, pipeline: str, file: str) -> Message:
    """Returns the message about events that are not sent any more."""
    what, why = f"{plural(count, 'event')} left out", "not sent within a day, or gone from the logs"
    lines = (f"{what}: {why}", f"`stoker events {file}` shows what there is")
    return Message("warning", pipeline, what, lines, "left_out", then={"left_out": 0})


def digest(many: Sequence[Message]) -> Message:
    """Returns one message in place of many: the first in a line each, and a count of the others by word."""
    level = max((one.level for one in many), key=LEVELS.index)
    lines = [(one.brief or one.title)[:MOST_CHARS] for one in many[:MOST_LINES]]
    if rest := many[MOST_LINES:]:
        kinds = ", ".join(
            f"{count} {word}" for word, count in Counter(one.word for one in rest).most_common()
        )
        lines.append(f"{len(rest)} more, up to {rest[-1].brief.partition(' ')[0]}: {kinds}"[:MOST_CHARS])
    names = [name for one in many for name in one.names]
    then = {key: value for one in many for key, value in one.then.items()}
    return Message(level, many[0].pipeline, f"{len(many)} messages", lines, "digest", names, then)
