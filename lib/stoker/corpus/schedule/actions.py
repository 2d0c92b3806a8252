"""What the stage-shard loop may do next with a source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """Have a worker begin a job of this kind on the path."""

    kind: str
    path: str


@dataclass(frozen=True)
class Restart:
    """Start the path from the beginning, with the content its receipt names."""

    path: str


@dataclass(frozen=True)
class Replace:
    """The path's file holds other content since its set was proven: the set stays, under the path's former
    name, and the path starts from the beginning."""

    path: str


@dataclass(frozen=True)
class GiveUp:
    """The path's file could not be fetched: the others go on without it, until it comes after all."""

    path: str


@dataclass(frozen=True)
class GiveUpContent:
    """A former or imported content's set is gone, and no file has the content: it cannot be made again."""

    path: str


@dataclass(frozen=True)
class Duplicate:
    """The path's content is that of `of`, which has its shard set."""

    path: str
    of: str


@dataclass(frozen=True)
class KeepHot:
    """Take the intent to evict back: the set is on hot still, and warm cannot be read now."""

    path: str


RecordAction = Restart | Replace | GiveUp | GiveUpContent | Duplicate | KeepHot
Action = Start | RecordAction
