"""What is due on a route: of what the event logs have, at this hour, after what it was sent before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from stoker.cli.notify.messages import LEVELS, Event, Message, digest, name_of
from stoker.config.schema import Route
from stoker.kit.event_types import event_type
from stoker.observe.verdict import Finding, Verdict
from stoker.store.record import utc_at

HOUR_S, DAY_S = 3_600.0, 86_400.0


@dataclass(frozen=True)
class Progress:
    """What is known of a route from call to call, as notify.json has it.

    `places` are up to where each daemon's log is done with: the number and the latest time of its events.
    `ahead` are events that were sent before ones that wait, `recent` the time and word of each message within
    an hour, `trouble` what it was told to need a hand, `suspect` what needed one at the last call, `day` the
    date of its last morning line.
    """

    places: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ahead: Sequence[str] = ()
    recent: Sequence[Sequence[Any]] = ()
    failing_since: float | None = None
    left_out: int = 0
    trouble: Sequence[str] = ()
    suspect: Sequence[str] = ()
    day: str = ""

    def after(self, message: Message, now: float, *, is_sent: bool = True) -> Progress:
        """Returns what is known once a message is sent, or was not taken."""
        if not is_sent:
            return replace(self, failing_since=min(now, self.failing_since or now))
        sent = {"ahead": [*self.ahead, *message.names], "recent": [*self.recent, (now, message.word)]}
        return replace(self, failing_since=None, **{**sent, **message.then})


def is_wanted(route: Route, event: Event) -> bool:
    """Returns whether a route is for this event."""
    row, level = event_type(event["event"]), str(event.get("level"))
    names = {event["event"], *((row.word, *row.was) if row else ())}
    return bool(names & {*route.words}) or level in LEVELS[LEVELS.index(route.least or "none") :]


def caught_up(
    route: Route, progress: Progress, logs: Mapping[str, Sequence[Event]], now: float
) -> tuple[Progress, list[Event]]:
    """Returns the progress with all behind it that need not be sent, and the events that wait, oldest first.

    Counts as left out: what is gone from the logs, and, on a route that fails for a day, what is that old.
    """
    is_given_up = progress.failing_since is not None and now - progress.failing_since >= DAY_S
    too_old = utc_at(now - DAY_S) if is_given_up else ""
    places, left_out, waiting, behind = dict(progress.places), progress.left_out, list[Event](), set[str]()
    for daemon, events in logs.items():
        seq, time = places.get(daemon, (0, ""))
        new = [event for event in events if event["seq"] > seq or event["time"] > time]
        mine = [event for event in new if is_wanted(route, event) and name_of(event) not in progress.ahead]
        old = len([*takewhile(lambda event: event["time"] < too_old, mine)])
        done = new[: new.index(mine[old])] if mine[old:] else new
        if done:
            last, known = done[-1]["seq"], sum(event["seq"] > seq for event in done)
            left_out += old + max(0, last - seq - known)
            places[daemon] = last, max(time, *(event["time"] for event in done))
        behind |= {*map(name_of, new[len(done) :])}
        waiting += mine[old:]
    ahead = [name for name in progress.ahead if name in behind]
    recent = [one for one in progress.recent if 0 <= now - one[0] < HOUR_S]
    caught = replace(progress, places=places, ahead=ahead, recent=recent, left_out=left_out)
    return caught, sorted(waiting, key=lambda event: (event["time"], event["daemon"], event["seq"]))


def judged_for(
    least: str, progress: Progress, judged: Verdict, words: set[str], pipeline: str
) -> tuple[Progress, list[Message]]:
    """Returns the message about a changed verdict, if any; events of these words tell of it themselves.

    What is seen for the first time may be a daemon that is just started again: the next call tells it.
    """
    hands = [each for each in judged.hands if least in ("warning", _level(each))]
    standing = {f"{each.grade}: {each.event or each.do}": each for each in hands}  # its text has figures
    lasting = {key: each for key, each in standing.items() if key in (*progress.suspect, *progress.trouble)}
    progress, told = replace(progress, suspect=[*standing]), words | {word for _, word in progress.recent}
    new = [each for key, each in lasting.items() if key not in progress.trouble and each.event not in told]
    if not new and (standing or not progress.trouble):
        return replace(progress, trouble=[*lasting]), []
    level = max(map(_level, new), key=LEVELS.index, default="info")
    lines = [line for each in new for line in (each.what, f"To do: {each.do}" if each.do else "")]
    word = " ".join(each.event or each.what for each in new) or "well"
    lines, then = lines or ["nothing needs a hand any more"], {"trouble": [*lasting]}
    return progress, [Message(level, pipeline, judged.text, lines, word, then=then)]


def _level(found: Finding) -> str:
    row = event_type(found.event)
    return "error" if found.grade == "broken" or (row and row.level == "error") else "warning"


def due(route: Route, progress: Progress, waiting: Sequence[Message], local: datetime) -> list[Message]:
    """Returns what is sent now: within quiet hours only errors, beyond the hour's number a digest.

    Where that number is used up, an error of another kind than those of this hour does not wait.
    """
    errors = [message for message in waiting if message.level == "error"]
    waiting = errors if is_within(route.quiet, local) else [*waiting]
    room = route.most_an_hour - len(progress.recent)
    if len(waiting) <= room:
        return waiting
    if room > 0:
        return [*waiting[: room - 1], digest(waiting[room - 1 :])]
    words = {word for _, word in progress.recent}
    return [error for error in errors if error.word not in words][:1]


def is_within(hours: str | None, local: datetime) -> bool:
    """Returns whether it is within these hours now; they may pass midnight."""
    begin, _, end = (hours or "").partition("-")
    now = f"{local:%H:%M}"
    return begin <= now < end if begin <= end else now >= begin or now < end


def is_morning(progress: Progress, daily: str | None, local: datetime) -> bool:
    """Returns whether the line of this day is due: once a date, also where the clock was set back a day."""
    today, tomorrow = (f"{local + timedelta(days=n):%Y-%m-%d}" for n in (0, 1))
    return daily is not None and f"{local:%H:%M}" >= daily and not today <= progress.day <= tomorrow
