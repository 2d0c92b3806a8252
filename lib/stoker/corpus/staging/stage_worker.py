"""Worker: brings one source file to hot, hashes it and checks its footer.

The file becomes a hard link where possible, else a copy that survives a kill: the copy is hashed as it is
written and grows under the name `.part-<name>`. The next try hashes the partial copy and reads only the rest
of the source; where the result is wrong, it copies the whole file again.

task: {"root", "home", "file", "size", "sha256", "target", "text_column", "columns": {name: kind}, "floor",
    "decode", "disks"}; `file` is below `root`, the source folder or the landing; `home` is the folder itself
    or the directory that holds the landing, and is empty only while its disk is not mounted
messages: {"kind": "copied" | "hashed", "bytes"}, then {"kind": "preflight"}, then
    {"kind": "progress", "row_groups"}
result: {"status": "staged", "how": "link" | "copy" | "kept", "sha256", "cached", "resumed", "xxh3"},
        {"status": "bad", "reason", "row_group", "column", "detail"}: at the target, but not to be built,
        {"status": "mismatch", "sha256"}: other content than the receipt's; the target does not exist,
        {"status": "missing"}: the source file does not exist,
        {"status": "unavailable", "reason"}: the whole source folder cannot be read
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from stoker.corpus.readers.reader import reader_of
from stoker.corpus.readers.table import Tokens
from stoker.kit.workers.child import Report, paced, run_worker
from stoker.store.direct import (
    ALIGNMENT,
    CHUNK,
    PART,
    DirectReader,
    DirectWriter,
    DiskFullError,
    aligned_buffer,
    hash_file,
    insist_on_room,
)
from stoker.store.errors import FULL, Transient, UnavailableError
from stoker.store.files import below, file_beneath, make_dir, move_durably, opened, unlink_durably

LOOK_BYTES = 64 << 20  # between two checks of the free space
# A hard link is refused: other file system, no links on this one, too many links, protected_hardlinks.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Wanted:
    """The content that the receipt names, and the bytes that a copy must leave free on the file system."""

    sha256: str
    size: int
    floor: int


@dataclass(frozen=True)
class Brought:
    """The content that arrived at the target."""

    how: Literal["link", "copy", "kept"]
    sha256: str
    cached: bool = False  # as in FileHash
    xxh3: str = ""  # xxh3_128 of the same bytes: a change check at a sixteenth of the cost of sha256
    resumed: int = 0  # bytes that were there from an earlier try


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    target = Path(task["target"])
    tell = paced(lambda what, done: report(what, bytes=done))
    make_dir(target.parent)
    brought = _kept(target, task["sha256"], tell)
    if brought is None:
        try:
            brought = _bring(task, target, tell)
        except DiskFullError:
            raise
        except OSError as error:
            if reason := why_away(Path(task["home"])):
                return {"status": "unavailable", "reason": reason}
            if isinstance(error, FileNotFoundError):
                return {"status": "missing"}
            raise
    if brought.sha256 != task["sha256"]:
        return {"status": "mismatch", "sha256": brought.sha256}
    report("preflight")
    flaw = reader_of(target).preflight(
        target,
        task["text_column"],
        task["columns"],
        tokens=Tokens.of(task),
        decode=task["decode"],
        progress=lambda groups: report("progress", row_groups=groups),
        past_cache=True,  # as the hash was taken: the page cache convicts no file
    )
    if flaw is not None:
        # Of a copy only what was written is known: the content is bad where the disk holds the same.
        if _hashed("kept", target, tell).sha256 != task["sha256"]:
            raise Transient(f"{target}: the disk gives back other bytes than were written; copied again")
        return {"status": "bad", **flaw.fields()}
    return {"status": "staged", **asdict(brought)}


def _kept(target: Path, sha256: str, tell: Progress) -> Brought | None:
    """Returns the content of a target that exists already; deletes a target with other content."""
    try:
        found = _hashed("kept", target, tell)
    except FileNotFoundError:
        return None
    if found.sha256 != sha256:
        unlink_durably(target)
        return None
    _drop_partial(target)  # an earlier try finished the copy, but was killed before this deletion
    return found


def _bring(task: dict[str, Any], target: Path, tell: Progress) -> Brought:
    root = Path(task["root"])
    relative = below(root, Path(task["file"]))
    if relative is None:
        raise UnavailableError(
            f"{task['file']} does not lie in {root}; its receipt is of another source folder and is renewed"
        )
    with file_beneath(root, relative) as source:
        return bring(source, target, Wanted(task["sha256"], task["size"], task["floor"]), tell)


def bring(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought:
    """Copies or links an open source file to the target, durably; leaves no target of other content.

    `progress` is called with "copied" or "hashed" and the bytes done so far. Raises DiskFullError (after
    deleting the partial copy, for its room) or another OSError (and keeps the partial copy).
    """
    if os.fstat(source).st_size != wanted.size:
        return Brought("copy", "")
    return _link(source, target, wanted, progress) or _copy(source, target, wanted, progress)


def _link(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought | None:
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.unlink(missing_ok=True)
    try:
        # By descriptor: links the file that was opened, even if its name leads to another file by now.
        os.link(f"/proc/self/fd/{source}", temporary, src_dir_fd=source, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return None
    found = _hashed("link", temporary, progress)
    if found.sha256 == wanted.sha256:
        _drop_partial(target)
        move_durably(temporary, target)
    else:
        unlink_durably(temporary)
    return found


def _hashed(how: Literal["link", "kept"], file: Path, progress: Progress) -> Brought:
    xxh3 = xxhash.xxh3_128()
    found = hash_file(file, also=xxh3, progress=lambda done: progress("hashed", done))
    return Brought(how, found.sha256, found.cached, xxh3.hexdigest())


def _copy(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought:
    part = _part_of(target)
    try:
        made = _go_on(source, part, wanted, progress)
        if made.sha256 != wanted.sha256 and made.resumed:
            # The source may be right, and the kept part of the copy wrong.
            _drop_partial(target)
            made = _go_on(source, part, wanted, progress)
    except OSError as error:
        if error.errno in FULL:
            _drop_partial(target)
            if not isinstance(error, DiskFullError):
                raise DiskFullError(f"{target}: {error.strerror}") from error
        raise
    if made.sha256 == wanted.sha256:
        move_durably(part, target)
    _drop_partial(target)
    return made


def _go_on(source: int, part: Path, wanted: Wanted, progress: Progress) -> Brought:
    """Copies the missing rest and makes it durable; the caller compares the hash."""
    digest, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    with (
        opened(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as target,
        aligned_buffer(CHUNK) as buffer,
    ):
        there = os.fstat(target).st_size
        kept = there - there % ALIGNMENT if there <= wanted.size else 0
        os.ftruncate(target, kept)
        insist_on_room(part.parent, wanted.size - kept, wanted.floor)
        claimed = DirectReader(target)
        for chunk in claimed.chunks(buffer, kept):
            digest.update(chunk)
            xxh3.update(chunk)
            progress("copied", claimed.done)
        reader, writer = DirectReader(source, start=kept), DirectWriter(target, start=kept)
        looked = kept
        for chunk in reader.chunks(buffer, wanted.size):
            digest.update(chunk)
            xxh3.update(chunk)
            writer.append(chunk)
            progress("copied", writer.done)
            if writer.done - looked >= LOOK_BYTES:
                looked = writer.done
                insist_on_room(part.parent, 0, wanted.floor)
        writer.commit()
    return Brought("copy", digest.hexdigest(), reader.cached, xxh3.hexdigest(), kept)


def _part_of(target: Path) -> Path:
    return target.with_name(f"{PART}{target.name}")


def _drop_partial(target: Path) -> None:
    if os.path.lexists(part := _part_of(target)):
        unlink_durably(part)


def why_away(root: Path) -> str:
    """Returns why a source folder cannot be read now, as a sentence; empty where it is readable."""
    try:
        with os.scandir(root) as entries:
            if next(entries, None) is not None:
                return ""
    except OSError as error:
        return (
            f"the source folder {root} cannot be read: {error.strerror}; mount it, or correct dataset.source"
        )
    return f"the source folder {root} is empty, as an unmounted one is; mount it"


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
