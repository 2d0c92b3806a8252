"""What the stage-shard loop may do next with a source, one class for each thing it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Renew:
    """Start the path anew with the content its receipt names."""

    path: str


@dataclass(frozen=True)
class Replace:
    """The path's file holds other content since its set was proven: the set stays, under the path's former
    name, and the path begins anew."""

    path: str


@dataclass(frozen=True)
class GiveUp:
    """The path's file could not be fetched: the others go on without it, until it comes after all."""

    path: str


@dataclass(frozen=True)
class Forsake:
    """A former content's set is gone, and no file has the content: it cannot be made again."""

    path: str


@dataclass(frozen=True)
class Duplicate:
    """The path's content is that of `of`, which has its shard set."""

    path: str
    of: str


@dataclass(frozen=True)
class Stage:
    """Bring the path's file to hot; `decode` its text as well, to know that a tokenizer can train on it."""

    path: str
    decode: bool


@dataclass(frozen=True)
class Build:
    """Make the path's shard set, or go on making it."""

    path: str


@dataclass(frozen=True)
class Prove:
    """A set with the path's key lies on hot: prove it and take it for built."""

    path: str


@dataclass(frozen=True)
class Quarantine:
    """Set the path's file aside for the finding against it."""

    path: str


@dataclass(frozen=True)
class QuarantineSet:
    """Set aside what stands at the path's target: it is not the set it should be."""

    path: str


@dataclass(frozen=True)
class Release:
    """Remove the path's file from hot: its set is proven, and with a warm disk copied."""

    path: str


@dataclass(frozen=True)
class Withdraw:
    """Take back what was begun of the path's file: it turned out to be beyond the slice."""

    path: str


Action = (Renew | Replace | Withdraw | Duplicate | Forsake | GiveUp) | (
    Stage | Build | Prove | Quarantine | QuarantineSet | Release
)
