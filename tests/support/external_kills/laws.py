"""What must hold whenever a launch has begun: over the trainer's ledger, and what lies on the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Note = Mapping[str, Any]


@dataclass
class Ledger:
    """The notes of the trainer, in order."""

    file: Path
    notes: list[Note] = field(default_factory=list)
    _read: int = 0

    def look(self) -> Sequence[Note]:
        """Read what is new; all notes."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    self.notes.append(json.loads(line))
        return self.notes

    def launches(self) -> list[list[Note]]:
        """The notes of each launch, from its start on."""
        found: list[list[Note]] = []
        for one in self.look():
            if one["kind"] == "start":
                found.append([])
            found[-1].append(one)
        return found


def notes_of(launch: Sequence[Note], kind: str) -> list[Note]:
    """The notes of a kind."""
    return [one for one in launch if one["kind"] == kind]


def steps_of(launch: Sequence[Note], kind: str) -> list[int]:
    """Their steps."""
    return [one["step"] for one in notes_of(launch, kind)]


def begun_at(launch: Sequence[Note]) -> int:
    """The step that a launch goes on from; of a mixture the oldest part's."""
    return min((step for step, _ in launch[0]["parts"].values()), default=0)


def wrong_begin(ledger: Ledger, start: Note) -> Iterator[str]:
    """Yields what is wrong with the state that a launch begins from."""
    parts, path = start["parts"], start["path"]
    told = ", ".join(f"{part} of step {step}" for part, (step, _) in parts.items())
    if start["problem"]:
        yield f"begins from half a state: {path}: {start['problem']}"
    elif path and len({tuple(stamp) for stamp in parts.values()}) != 1:
        yield f"begins from a mixture: {path}: {told}"
    elif path:
        (step, nonce), *_ = parts.values()
        if not any(one["kind"] == "writing" and one["nonce"] == nonce for one in ledger.notes):
            yield f"begins from a state that no launch has saved: {path}: {told}"
        said = start["env"]["RESUME_STEP"]
        if said and start["env"]["RESUME_FROM"] and int(said) != step:
            yield f"STOKER_RESUME_STEP is {said}, but {path} is of step {step}"


def too_far_back(before: Sequence[Note], now: Sequence[Note], every: int, *, is_told: bool) -> Iterator[str]:
    """Yields how a launch goes back by more than one interval from what the one before it had."""
    begun, finished = begun_at(now), max(steps_of(before, "finished"), default=0)
    last = max(steps_of(before, "step"), default=0)
    if begun < begun_at(before):
        yield f"begins at step {begun}, the launch before began from step {begun_at(before)}"
    elif begun < finished - every:
        yield f"begins at step {begun}, more than {every} steps before the finished save of step {finished}"
    elif is_told and last - begun > every and not _wrote_over(before, finished, every):
        told = f"and the save of step {finished} was finished"
        yield f"begins at step {begun}, more than {every} steps before step {last}, {told}"


def _wrote_over(launch: Sequence[Note], finished: int, every: int) -> bool:
    """Whether a trainer that was asked to stop saved over its newest save, which nobody had seen yet."""
    after = [one for one in launch if one["kind"] == "writing" and finished < one["step"] < finished + every]
    paths = {one["path"] for one in notes_of(launch, "finished") if one["step"] == finished}
    return any(one["path"] in paths for one in after)


class Disk:
    """The contents of all files below a directory, each hashed once for as long as it is the same."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[tuple[int, int, int], str] = {}

    def contents(self) -> dict[str, set[Path]]:
        """Paths by the sha256 of what they hold."""
        found: dict[str, set[Path]] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                try:
                    about = path.stat(follow_symlinks=False)
                    key = about.st_ino, about.st_mtime_ns, about.st_size
                    if key not in self._known:
                        self._known[key] = hashlib.sha256(path.read_bytes()).hexdigest()
                except OSError:  # a socket, or gone meanwhile
                    continue
                found.setdefault(self._known[key], set()).add(path)
        return found


def lost(ledger: Ledger, disk: Disk) -> Iterator[str]:
    """Yields each state that a trainer wrote, has not replaced by itself, and that lies nowhere any more."""
    left = _left(ledger.look())
    for _ in range(2):  # what was renamed while all was listed is there at the second look
        contents = disk.contents()
        left = [one for one in left if not _lies_somewhere(one["files"], contents)]
    still = _left(ledger.look())
    for one in left:
        if one in still:
            kind = "the finished state" if one["kind"] == "finished" else "the unfinished state"
            yield f"{kind} of step {one['step']} is nowhere any more: {one['path']}"


def _left(notes: Sequence[Note]) -> list[Note]:
    last: dict[str, Note] = {}
    for one in notes:
        if one["kind"] == "writing":
            last.pop(one["path"], None)
        elif one["kind"] in ("part", "finished"):
            last[one["path"]] = one
    return list(last.values())


def _lies_somewhere(files: Mapping[str, str], contents: Mapping[str, set[Path]]) -> bool:
    """Whether one directory holds all of these, whatever the first of their names has become."""
    places = []
    for name, digest in files.items():
        below = Path(*Path(name).parts[1:])
        found = contents.get(digest, set())
        depth = len(below.parts)
        folders = {path.parents[depth - 1] for path in found if depth and path.parts[-depth:] == below.parts}
        places.append(folders if depth else found)
    return bool(places) and bool(set.intersection(*places))
