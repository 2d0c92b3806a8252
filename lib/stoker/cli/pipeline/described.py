"""What `stoker describe` asks and answers: a question about a thing, its description, its history."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from stoker.config.schema import Pipeline
from stoker.observe.verdict import Facts, Verdict, verdict
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.store.log import LogScan
from stoker.store.record import read_record, utc_at
from stoker.supervise.outlook import gather

T = TypeVar("T")
Event = Mapping[str, Any]
SHOWN = 5  # the newest events of a history
DAY_S = 86_400.0


@dataclass(frozen=True)
class History:
    """How many events of the logs are about a thing, how many in the last day, and the newest, in order."""

    count: int = 0
    in_24_h: int = 0
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Description:
    """A thing: `facts` by name, None for what is not known, what comes `next`, what a person can `do`."""

    name: str
    facts: Mapping[str, Any]
    next: str = ""
    do: tuple[str, ...] = ()
    history: History = History()


@dataclass
class Question:
    """A thing of a pipeline, as it was typed; `unread` says what could not be read."""

    pipeline: Pipeline
    thing: str
    unread: list[str] = field(default_factory=list)
    problem: StokerError | OSError | None = None  # the first

    def read(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Returns a call's result; None for a missing file, and for an unreadable one, which is noted."""
        try:
            return call(*arguments)
        except FileNotFoundError:
            return None
        except StokerError as problem:
            self._note(problem, str(problem))
        except OSError as problem:
            self._note(problem, f"{problem.filename}: {problem.strerror}")
        except (KeyError, TypeError, ValueError) as problem:  # a whole record, of fields that are not known
            self.unread.append(f"{arguments[-1]}: another version of Stoker wrote it ({problem!r})")
        return None

    def _note(self, problem: StokerError | OSError, text: str) -> None:
        self.problem = self.problem or problem
        self.unread.append(text)

    def record(self, parse: Callable[[Mapping[str, Any]], T], path: Path) -> T | None:
        """Returns a record, parsed; None as `read` does."""
        return self.read(lambda path: parse(read_record(path)), path)

    def log(self, read: Callable[[Path], tuple[list[T], Iterable[str]]], path: Path) -> list[T]:
        """Returns the entries of a log that are whole; notes its damage."""
        entries, damage = self.read(read, path) or ([], ())
        self.unread += [f"{path} is damaged: {each}" for each in damage]
        return entries

    @cached_property
    def facts(self) -> Facts | None:
        """What the pipeline is judged by; None where that cannot be read."""
        return self.read(gather, self.pipeline)

    def judged(self, daemon: str) -> Verdict:
        """Returns the verdict on one daemon, and on the run where it is the train supervisor."""
        facts = self.facts
        if facts is None or daemon not in facts.daemons:
            return Verdict("waits", "what the daemons do is not known")
        record = facts.record if daemon == TRAIN_SUPERVISOR else None
        return verdict(replace(facts, daemons={daemon: facts.daemons[daemon]}, record=record))

    def history(self, matches: Callable[[Event], bool], daemons: Iterable[str] = DAEMONS) -> History:
        """Returns the history by the event logs, which rotate within a few MiB; reads them line by line."""
        found = [one for daemon in daemons if (one := self.read(self._history, matches, daemon))]
        newest = sorted(
            (event for one in found for event in one.events), key=lambda event: str(event["time"])
        )
        count, in_24_h = (sum(getattr(one, name) for one in found) for name in ("count", "in_24_h"))
        return History(count, in_24_h, tuple(newest[-SHOWN:]))

    def _history(self, matches: Callable[[Event], bool], daemon: str) -> History:
        path, since = self.pipeline.layout.events(daemon), utc_at(time.time() - DAY_S)
        scan, count, in_24_h, newest = LogScan(path, rotated=True), 0, 0, deque[Event](maxlen=SHOWN)
        for entry, _ in scan:
            event = {**entry, "daemon": daemon, "time": str(entry.get("time"))}
            if matches(event):
                count, in_24_h = count + 1, in_24_h + (event["time"] >= since)
                newest.append(event)
        self.unread += [f"{path} is damaged: {each}" for each in scan.damage]
        return History(count, in_24_h, tuple(newest))
