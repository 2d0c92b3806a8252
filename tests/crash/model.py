"""The steps of a recorded write path, and the tree they start from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ROOT = 0
Key = tuple[int, str]  # a directory's node and a name in it


@dataclass(frozen=True)
class Node:
    """A file, directory or symbolic link, whatever its names; its number stays when it is renamed."""

    kind: Literal["file", "dir", "symlink"]
    mode: int
    target: str = ""


@dataclass(frozen=True)
class Entries:
    """Names that change together (create, rename, unlink), durable once the directory `anchor` is synced."""

    label: str
    anchor: int
    changes: tuple[tuple[Key, int | None], ...]


@dataclass(frozen=True)
class Write:
    """Bytes into a file, durable once the file is synced."""

    label: str
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A file's length set, durable once the file is synced."""

    label: str
    node: int
    length: int


@dataclass(frozen=True)
class Sync:
    """An fsync or fdatasync of a file or directory."""

    label: str
    node: int


@dataclass(frozen=True)
class Acknowledged:
    """From here on somebody relies on what was written."""

    label: str
    value: Any


Effect = Entries | Write | Truncate
Step = Effect | Sync | Acknowledged


@dataclass
class Trace:
    """What was there before, durable, and what was then done."""

    nodes: dict[int, Node] = field(default_factory=dict)
    names: dict[Key, int] = field(default_factory=dict)
    content: dict[int, bytes] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def apply_data(content: bytearray, effect: Write | Truncate) -> None:
    """Do a write or truncate to a file's content, holes filled with zeros."""
    if isinstance(effect, Truncate):
        del content[effect.length :]
        content.extend(bytes(effect.length - len(content)))
        return
    content.extend(bytes(max(0, effect.offset - len(content))))
    content[effect.offset : effect.offset + len(effect.data)] = effect.data
