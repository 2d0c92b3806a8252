"""One file on its way: attempt after attempt, from where the last one's bytes are durable to its own name."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.corpus.fetch import (
    PROGRESS_BYTES,
    Answer,
    FetchFailed,
    Go,
    Tally,
    judge,
    resume_offset,
)
from stoker.corpus.fetch_http import Body, Caller
from stoker.corpus.fetch_limits import Bandwidth, RateWatch
from stoker.corpus.landing import Landing, PartRecord, part_bytes
from stoker.corpus.landing_content import Content, PartFile, look_at_landed
from stoker.corpus.landing_evidence import keep_evidence
from stoker.corpus.remote import RemoteFile
from stoker.kit.backoff import Backoff
from stoker.store.errors import UnavailableError

_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_AWAY = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ENOTCONN)

Tell = Callable[..., None]


@dataclass(frozen=True)
class Terms:
    """What holds for every file: the landing, whom to tell, when bytes are made durable, the rates, the bytes
    that stay free, and how many files and bytes of evidence are kept."""

    landing: Landing
    bandwidth: Bandwidth
    tell: Tell
    commit_bytes: int
    min_rate: float
    window_s: float
    floor: int
    keep_files: int
    keep_bytes: int


@dataclass(frozen=True)
class Done:
    """A file is here, under its own name and true; `how` is "fetched" or "kept" (it lay there already)."""

    how: str
    size: int
    sha256: str
    etag: str
    cached: bool


class Stopped(Exception):
    """The file was dropped, or the worker stops."""


class FileOnItsWay:
    """One file. attempt() belongs to one thread at a time; commit() may come from another meanwhile."""

    def __init__(self, file: RemoteFile, terms: Terms, backoff: Backoff) -> None:
        self.file, self.backoff = file, backoff
        self.tally = Tally()
        self.dropped = False
        self.received = 0  # bytes that came over the network, again fetched ones included
        self._terms, self._landing, self._tell = terms, terms.landing, terms.tell
        self._wake = threading.Event()  # set when the attempt under way shall end
        self._part: PartFile | None = None
        self._content = Content(file)
        self._pending = bytearray()  # received, and not yet a chunk worth writing; a commit writes it
        self._record = PartRecord(
            terms.landing.dataset, file.path, sums=file.identity, revision=file.revision
        )
        self._lock = threading.Lock()  # content, part and pending as one
        self._committing = threading.Lock()  # one commit in flight
        self._durable = 0
        self._trouble: FetchFailed | None = None  # what a commit met

    def attempt(self, caller: Caller) -> Done:
        """Bring the file here from where it stands. Raises FetchFailed or Stopped."""
        self._stop_if_asked()
        before = self._content.size
        try:
            with _disk_failures(self.file.path):
                return self._attempt(caller)
        except FetchFailed as failure:
            self._count(failure, progressed=self._content.size - before >= PROGRESS_BYTES)
            raise

    def stop(self) -> None:
        """End the attempt under way soon, for good; what came stays."""
        self._wake.set()

    def drop(self) -> None:
        """End the attempt under way soon; nobody wants the file any more."""
        self.dropped = True
        self._wake.set()

    @property
    def uncommitted(self) -> int:
        """Bytes that a power cut would take."""
        return self._content.size + len(self._pending) - self._durable

    def commit(self) -> None:
        """Make what came durable, then claim it. A failure is kept for the attempt under way."""
        try:
            with self._committing, _disk_failures(self.file.path):
                self._commit()
        except FetchFailed as failure:
            self._trouble = failure

    def close(self) -> None:
        """Let go of the bytes; the next attempt reads them again."""
        with self._committing, self._lock:
            if self._part is not None:
                self._part.close()
            self._part = None
            self._content, self._durable = Content(self.file), 0
            self._pending = bytearray()

    def forget(self) -> None:
        """Close, and drop what is unfinished of the file. Raises FetchFailed."""
        self.close()
        with _disk_failures(self.file.path):
            self._landing.forget(self.file.path)

    # An attempt

    def _attempt(self, caller: Caller) -> Done:
        self._landing.insist()
        if (landed := self._look_at_landed()) is not None:
            return landed
        if self._part is None:
            self._open_part()
        self._trouble = None
        total = self.file.size if self.file.size is not None else self._record.total
        if self._content.size != total:
            self._insist_on_room(total)
            self._fetch(caller)
        return self._finish()

    def _look_at_landed(self) -> Done | None:
        path = self._landing.target(self.file.path)
        landed = look_at_landed(self.file, path, lambda done: self._tick("hashing", done))
        if landed is None:
            return None
        if landed.mismatch is not None:
            self._set_aside(path, *landed.mismatch, found_here=True)
            return None
        self.close()
        self._landing.forget(self.file.path)
        return Done("kept", landed.size, landed.sha256, "", landed.cached)

    def _open_part(self) -> None:
        path = self._landing.part(self.file.path)
        record = self._landing.read_part(self.file.path)
        if record is None or record.sums != self.file.identity:
            record = PartRecord(self._landing.dataset, self.file.path, sums=self.file.identity)
        self.tally = replace(self.tally, mismatches=max(self.tally.mismatches, record.mismatches))
        offset = resume_offset(record.kept, self.file, part_bytes(path))
        part = PartFile(path, offset)
        content = Content.of_prefix(
            self.file, part.descriptor, offset, lambda done: self._tick("hashing", done)
        )
        if content.size != offset or (offset and content.sha256 != record.prefix):
            # What the disk gives back is not what was made durable: nothing of it can be believed.
            self._tell("rotten", path=self.file.path, bytes=offset)
            part.restart()
            content, offset = Content(self.file), 0
        with self._lock:
            self._part, self._content, self._durable = part, content, offset
        self._record = replace(record, offset=offset, revision=self.file.revision)
        self._tell("start", path=self.file.path, offset=offset)

    def _fetch(self, caller: Caller) -> None:
        with self._lock:
            self._pending = bytearray()  # what a full disk did not take
            offset = self._content.size
        with caller.open(self.file.url, offset, self._record.validator) as body:
            kept = replace(self._record.kept, offset=offset)
            try:
                go = judge(body.answer, kept, self.file)
            except FetchFailed as failure:
                if failure.kind == "anew":
                    self._restart(failure.reason)
                    if not offset:
                        failure.kind = "broken"  # there was nothing to drop: only a pause can help
                raise
            if go.offset < offset:
                self._restart(f"{body.answer.where} sends it from the start")
            self._note(body.answer, go)
            self._take(body, go)

    def _note(self, answer: Answer, go: Go) -> None:
        with self._committing:
            self._record = replace(self._record, validator=answer.validator, etag=answer.etag, total=go.total)

    def _take(self, body: Body, go: Go) -> None:
        total = self.file.size if go.total is None else go.total
        watch = RateWatch(self._terms.min_rate, self._terms.window_s)
        read_from = time.monotonic()
        try:
            for chunk in body.chunks():
                waited_s = time.monotonic() - read_from
                self.received += len(chunk)
                self._receive(chunk, total)
                if watch.add(waited_s, len(chunk)):
                    raise FetchFailed("slow", f"{body.answer.where} sends too slowly")
                self._stop_if_asked()
                if pause_s := self._terms.bandwidth.take(len(chunk)):
                    self._wake.wait(pause_s)
                read_from = time.monotonic()
        finally:
            with self._lock:
                self._write_pending()
        if total is not None and self._content.size < total:
            raise FetchFailed("short", f"{body.answer.where} ended {total - self._content.size} bytes early")

    def _receive(self, chunk: bytes, total: int | None) -> None:
        if self._trouble is not None:
            raise self._trouble
        with self._lock:
            if total is not None and self._content.size + len(self._pending) + len(chunk) > total:
                raise FetchFailed("length", f"{self.file.path}: more bytes came than the {total} there are")
            self._pending += chunk
            if len(self._pending) >= _CHUNK:
                self._write_pending()
        if self.uncommitted >= self._terms.commit_bytes:
            self._tell("due")

    def _write_pending(self) -> None:
        """Under the lock: file and sums take what was received."""
        if not self._pending or self._part is None:
            return
        data, self._pending = self._pending, bytearray()
        try:
            self._part.append(data)
        except OSError:
            self._pending = bytearray(data)  # else what comes next would be written in its place
            raise
        self._content.add(data)

    def _finish(self) -> Done:
        assert self._part is not None
        size, sha256 = self._content.size, self._content.sha256
        if (differs := self._content.mismatch(self.file)) is not None:
            self.close()
            self._set_aside(self._landing.part(self.file.path), *differs, found_here=False)
            raise FetchFailed("mismatch", f"{self.file.path} has the sum {differs[1]}, not {differs[0]}")
        with self._committing:
            self._part.make_durable()
            self._durable = size  # no commit after this: it would claim a part that has left
            self._landing.publish(self.file.path)
        etag = self._record.etag
        self.close()
        return Done("fetched", size, sha256, etag, cached=False)

    # Parts of it

    def _restart(self, reason: str) -> None:
        """Drop what came, durably, before other content is taken."""
        with self._committing:
            with self._lock:
                dropped = self._content.size
                if self._part is not None:
                    self._part.restart()
                self._content, self._durable = Content(self.file), 0
                self._pending = bytearray()
            self._record = replace(self._record, offset=0, prefix="", validator="", etag="", total=None)
            self._landing.write_part(self._record)
        if dropped:
            self._tell("anew", path=self.file.path, dropped=dropped, reason=reason)

    def _commit(self) -> None:
        with self._lock:
            self._write_pending()
            if self._part is None or self._content.size == self._durable:
                return
            size, prefix, part = self._content.size, self._content.sha256, self._part
        part.make_durable()
        self._record = replace(self._record, offset=size, prefix=prefix)
        self._landing.write_part(self._record)
        self._durable = size
        self._tell("progress", path=self.file.path, bytes=size, received=self.received)

    def _set_aside(self, bad: Path, expected: str, found: str, *, found_here: bool) -> None:
        count = self.tally.mismatches + (not found_here)
        reason = {"reason": "mismatch", "expected": expected, "found": found, "landed": found_here}
        place = keep_evidence(
            self._landing,
            bad,
            self.file.path,
            reason,
            most_files=self._terms.keep_files,
            most_bytes=self._terms.keep_bytes,
        )
        if not found_here:
            self._record = PartRecord(
                self._landing.dataset, self.file.path, sums=self.file.identity, mismatches=count
            )
            self._landing.write_part(self._record)
        self._tell(
            "mismatch",
            path=self.file.path,
            expected=expected,
            found=found,
            count=count,
            evidence=place,
            landed=found_here,
        )

    def _insist_on_room(self, total: int | None) -> None:
        room = os.statvfs(self._landing.root)
        free = room.f_bavail * room.f_frsize
        rest = max(0, (total or 0) - self._content.size)
        if free < rest + self._terms.floor:
            raise FetchFailed(
                "disk_full",
                f"{self._landing.root}: {free} bytes free, {rest} needed, {self._terms.floor} to stay free",
                number=errno.ENOSPC,
            )

    def _count(self, failure: FetchFailed, *, progressed: bool) -> None:
        self.tally = self.tally.after(failure.kind, progressed=progressed)
        if progressed:
            self.backoff.reset()
        self.commit()

    def _stop_if_asked(self) -> None:
        if self._wake.is_set():
            raise Stopped

    def _tick(self, kind: str, done: int) -> None:
        self._stop_if_asked()
        self._tell(kind, path=self.file.path, bytes=done)


@contextlib.contextmanager
def _disk_failures(path: str) -> Iterator[None]:
    """Turn what the disk says into FetchFailed."""
    try:
        yield
    except UnavailableError as error:
        raise FetchFailed("gone", str(error)) from error
    except OSError as error:
        kind = "disk_full" if error.errno in _FULL else "gone" if error.errno in _AWAY else "storage"
        raise FetchFailed(kind, f"{path}: {error}", number=error.errno) from error
