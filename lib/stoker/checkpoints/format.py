"""The form of a sealed checkpoint directory: its names, checkpoint.json and SHA256SUMS.

checkpoint.json lists every file except itself and SHA256SUMS, with size and sha256; SHA256SUMS, written last,
has a line for every file except itself.

Names are plain, except those of the files of a trainer of the user's own: these keep their tree below FILES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.record import parse_json, require_version

BODY = "checkpoint.json"
SUMS = "SHA256SUMS"
PLAN_COPY = "plan.jsonl"
TIMELINES_COPY = "timelines.jsonl"
FILES = "files"  # the directory with the file, or the directory, that a trainer of the user's own has written
TEMPORARY = ".tmp-step-"  # being sealed: .tmp-step-<launch>-<step>
PRUNED = ".tmp-pruned-"  # being removed

_NAME = re.compile(r"step-(\d{9,})")
_MIRRORED = re.compile(r"step-\d{9,}-([0-9a-f]{8})")
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A file's entry in checkpoint.json."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointBody:
    """The fields of checkpoint.json that Stoker reads."""

    step: int
    tokens: int
    position: tuple[int, int]  # (entry, offset) in the plan
    timeline: int
    plan_head: str
    files: Mapping[str, FileEntry]
    raw: Mapping[str, Any] = field(compare=False)  # all fields

    @property
    def bytes(self) -> int:
        """The size of the listed files."""
        return sum(entry.size for entry in self.files.values())


def checkpoint_name(step: int) -> str:
    """Returns the directory name of a step's checkpoint."""
    return f"step-{step:09d}"


def known_step(body: Mapping[str, Any]) -> int | None:
    """Returns the step of a checkpoint.json; None where it is a trainer's own of which nobody knows it."""
    external = body.get("external")
    step = external.get("step", body["step"]) if isinstance(external, dict) else body["step"]
    return None if step is None else int(step)


def step_of(name: str) -> int | None:
    """Returns the step in a directory name (a mirrored copy's suffix is allowed), or None."""
    match = _NAME.match(name)
    return int(match[1]) if match and name[match.end() :][:1] in ("", "-") else None


def mark_of(name: str) -> str | None:
    """Returns the first hex digits of checkpoint.json's sha256 in a mirrored copy's name, or None."""
    match = _MIRRORED.fullmatch(name)
    return match[1] if match else None


def write_body(body: Mapping[str, Any], files: Mapping[str, FileEntry]) -> bytes:
    """Returns the bytes of checkpoint.json.

    Raises DataError when the body lacks a field that readers need.
    """
    listed = {name: {"size": entry.size, "sha256": entry.sha256} for name, entry in files.items()}
    data = canonical_json({**body, "v": 1, "files": listed}) + b"\n"
    read_body(data)
    return data


def read_body(data: bytes, where: Path | str = BODY) -> CheckpointBody:
    """Parses checkpoint.json; raises a DataError that describes the flaw.

    Raises UnknownFormat naming `where` for another version: the caller may trust that only if the file's
    checksum is right.
    """
    try:
        raw = parse_json(data)
    except ValueError as problem:
        raise DataError(f"{BODY} is not JSON: {problem}") from problem
    if not isinstance(raw, dict) or "v" not in raw:
        raise DataError(f"{BODY} says no format version")
    require_version(raw, where)
    numbers: list[Any] = [raw.get(field) for field in ("step", "tokens", "timeline")]
    position, head = raw.get("position"), raw.get("plan_head")
    if not all(map(_is_count, numbers)):
        raise DataError(f"{BODY}: step, tokens and timeline are {numbers}, not whole numbers")
    if not (isinstance(position, list) and len(position) == 2 and all(map(_is_count, position))):
        raise DataError(f"{BODY}: position {position!r} is not [entry, offset]")
    if not (isinstance(head, str) and _HEX64.fullmatch(head)):
        raise DataError(f"{BODY}: plan_head {head!r} is not a sha256")
    step, tokens, timeline = numbers
    return CheckpointBody(step, tokens, tuple(position), timeline, head, _files(raw.get("files")), raw)


def folders_of(names: Iterable[str]) -> list[str]:
    """Returns the directories that hold these files, without the checkpoint's own, each after its parent."""
    return sorted({str(folder) for name in names for folder in PurePosixPath(name).parents} - {"."})


def write_sums(sums: Mapping[str, str]) -> bytes:
    """Returns SHA256SUMS for `sha256sum -c`, sorted by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()


def read_sums(data: bytes) -> dict[str, str]:
    """Returns sha256 by name.

    Raises DataError unless `write_sums` wrote the data, so every flipped bit shows.
    """
    sums = {line[66:]: line[:64] for line in data.decode(errors="replace").split("\n") if line}
    if write_sums(sums) != data or not all(map(_HEX64.fullmatch, sums.values())):
        raise DataError(f"{SUMS} is not lines '<sha256>  <name>', sorted, each name once")
    return sums


def _files(value: object) -> dict[str, FileEntry]:
    if not isinstance(value, dict):
        raise DataError(f"{BODY} lists no files")
    files: dict[str, FileEntry] = {}
    for name, entry in value.items():
        size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not (type(size) is int and size >= 0 and isinstance(digest, str) and _HEX64.fullmatch(digest)):
            raise DataError(f"{BODY}: {name}: size and sha256 are not both there")
        files[name] = FileEntry(size, digest)
    return files


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
