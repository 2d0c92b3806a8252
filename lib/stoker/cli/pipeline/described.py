"""What `stoker describe` asks and answers: a question about a thing, and its description."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from stoker.config.schema import Pipeline
from stoker.kit.event_types import filled
from stoker.observe.verdict import Verdict, verdict
from stoker.store.errors import DataError, StokerError
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.store.log import read_log
from stoker.store.record import read_record
from stoker.supervise.outlook import gather

T = TypeVar("T")
SHOWN = 5  # the newest events of a history
# An event is about a thing that one of these fields names.
FIELDS = ("event", "daemon", "path", "key", "folder", "launch", "step", "resume_step")


@dataclass(frozen=True)
class Description:
    """A thing: its name, `facts` by name, None for what is not known, the `words` by which events name it,
    what comes `next`, what a person can `do`."""

    name: str
    facts: Mapping[str, Any]
    words: Sequence[Any]
    next: str = ""
    do: Sequence[str] = ()


@dataclass
class Question:
    """A thing of a pipeline, as it was typed; `unread` says what could not be read, None for a damaged log,
    whose other lines were."""

    pipeline: Pipeline
    thing: str
    unread: dict[str, Exception | None] = field(default_factory=dict)

    def read(self, place: Path, call: Callable[..., T], *arguments: Any) -> T | None:
        """Returns a call's result; None for a missing file, and for an unreadable one, which is noted."""
        try:
            return call(*arguments)
        except FileNotFoundError:
            pass
        except (StokerError, OSError, KeyError, TypeError, ValueError) as error:
            self.note(place, error)
        return None

    def note(self, place: Path, error: Exception) -> None:
        """Notes what could not be read; a whole record of fields that are not known tells of no file."""
        if not isinstance(error, StokerError | OSError):
            error = DataError(f"{place}: another version of Stoker wrote it ({error!r})")
        self.unread.setdefault(str(error), error)

    def record(self, parse: Callable[[dict[str, Any]], T], path: Path) -> T | None:
        """Returns a record, parsed; None as `read` does."""
        return self.read(path, lambda: parse(read_record(path)))

    def log(self, path: Path, read: Callable[[Path], tuple[Iterable[T], Iterable[str]]]) -> Iterable[T]:
        """Returns the entries of a log that are whole; notes its damage."""
        entries, damage = self.read(path, read, path) or ((), ())
        self.unread |= dict.fromkeys(f"{path} is damaged: {each}" for each in damage)
        return entries

    def judged(self, daemon: str = TRAIN_SUPERVISOR) -> tuple[Mapping[str, Any], Verdict]:
        """Returns a daemon's status and the verdict on it alone, with the run for the train supervisor."""
        facts = self.read(self.pipeline.layout.state, gather, self.pipeline)
        if facts is None or daemon not in facts.daemons:
            return {}, Verdict("waits", "what it does is not known")
        about, record = facts.daemons[daemon], facts.record if daemon == TRAIN_SUPERVISOR else None
        return about, verdict(replace(facts, daemons={daemon: about}, record=record))

    def filled(self, text: str) -> str:
        """Returns a text of the register or the runbook with this pipeline's file and name."""
        return filled(text, str(self.pipeline.file), self.pipeline.name, "the {}".format)

    def history(self, words: Sequence[Any]) -> dict[str, Any]:
        """Returns how many events of the logs are about a thing, and the newest in order."""
        mine = list[dict[str, Any]]()
        for daemon in DAEMONS:
            for entry in self.log(self.pipeline.layout.events(daemon), _events):
                event = {**entry, "daemon": daemon, "time": str(entry.get("time"))}
                mine += [event] if any(event.get(name) in words for name in FIELDS) else []
        mine.sort(key=lambda event: event["time"])
        return {"count": len(mine), "events": mine[-SHOWN:]}


def _events(path: Path) -> tuple[Iterable[dict[str, Any]], Iterable[str]]:
    reading = read_log(path, rotated=True)
    return reading.entries, reading.damage
