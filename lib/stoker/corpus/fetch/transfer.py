"""One file's transfer: attempts that continue from the last durable byte until the file is whole."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.part import Part, look_at_landed
from stoker.corpus.http.client import HttpClient
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import PROGRESS_BYTES, FetchFailed, judge, resume_offset
from stoker.corpus.source.hash_worker import Background
from stoker.kit.loop import Backoff
from stoker.kit.workers.child import paced
from stoker.store.direct import insist_on_room
from stoker.store.errors import FULL, UnavailableError

HASHING_EVERY_S = 1.0
_AWAY = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ENOTCONN)

Tell = Callable[..., None]


class Bandwidth:
    """A bucket that fills with `rate` bytes per second, up to a second's worth; None is without limit.

    take() books bytes that have arrived and returns how long to pause: while a reader pauses, TCP's window
    closes and the server sends no more. Thread-safe; all readers share one debt.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rate = rate
        self._full_at = clock()  # when the bucket will be full again

    def take(self, size: int) -> float:
        """Books `size` bytes; returns the seconds to pause before reading on."""
        with self._lock:
            if self._rate is None:
                return 0.0
            now = self._clock()
            self._full_at = max(self._full_at, now - 1.0) + size / self._rate
            return max(0.0, self._full_at - now)


class RateWatch:
    """Detects a server that sends too slowly: fewer than `least` bytes per second over `window_s` seconds.

    Only the seconds spent waiting for the network count, so Stoker's own limit, a slow disk or a pause of
    this process is never blamed on the server.
    """

    def __init__(self, least: float, window_s: float) -> None:
        self._least, self._window_s = least, window_s
        self._waited_s = self._bytes = 0.0

    def add(self, waited_s: float, size: int) -> bool:
        """Records a read that waited so long for so many bytes; True when the server is too slow."""
        self._waited_s += waited_s
        self._bytes += size
        if self._waited_s < self._window_s:
            return False
        is_slow = self._bytes < self._least * self._waited_s
        self._waited_s = self._bytes = 0.0
        return is_slow


@dataclass(frozen=True)
class TransferConfig:
    """Settings of every transfer: the landing, the report function, the rates, the bytes that stay free, and
    the files and bytes of evidence to keep."""

    landing: Landing
    bandwidth: Bandwidth
    tell: Tell
    min_rate: float
    read_s: float
    floor: int
    keep_files: int
    keep_bytes: int
    background: Background = field(default_factory=Background)  # for hashing existing files, maybe many bytes


@dataclass(frozen=True)
class Done:
    """A whole, checked file under its own name; `how` is "fetched" or "kept" (it was in the landing already).

    `unproven`: neither a sum nor a length could prove it whole.
    """

    how: str
    size: int
    sha256: str
    cached: bool
    unproven: bool


class Stopped(Exception):
    """The worker stops."""


class FileFetch:
    """One file's transfer. attempt() belongs to one thread at a time; commit() may come from another."""

    def __init__(self, file: RemoteFile, terms: TransferConfig, backoff: Backoff) -> None:
        self.file, self.backoff = file, backoff
        self.failures: Counter[str] = Counter()  # by kind; only those in COUNTED matter
        self.in_hand = False
        self.not_before = 0.0  # when the next attempt may begin, monotonic seconds
        self.received = 0  # bytes over the network, including repeated bytes
        self._terms, self._landing, self._tell = terms, terms.landing, terms.tell
        self._part = Part(file, terms.landing)
        self._tell_hashing = paced(
            lambda done: self._tell("hashing", path=file.path, bytes=done), HASHING_EVERY_S
        )
        self._wake = threading.Event()  # set to end the present attempt

    def attempt(self, caller: HttpClient) -> Done:
        """Fetches the file from its last durable byte. Raises FetchFailed or Stopped."""
        self._stop_if_asked()
        before = self._part.size
        try:
            with _disk_failures(self.file.path):
                self._landing.insist()
                if (landed := self._look_at_landed()) is not None:
                    return landed
                if not self._part.opened:
                    self._open()
                if self._part.size != self._part.total:
                    rest = max(0, (self._part.total or 0) - self._part.size)
                    insist_on_room(self._landing.root, rest, self._terms.floor)
                    self._fetch(caller)
                return self._finish()
        except FetchFailed as failure:
            if self._part.size - before >= PROGRESS_BYTES:
                self.failures["expired"] = 0  # progress never forgets wrong content
                self.backoff.reset()
            self.failures[failure.kind] += 1
            self.commit()
            raise

    def stop(self) -> None:
        """Ends the present attempt soon, for good; its bytes stay."""
        self._wake.set()

    def commit(self) -> None:
        """Makes received bytes durable, then claims them; a failure ends the present attempt."""
        with contextlib.suppress(FetchFailed), _disk_failures(self.file.path):
            if (durable := self._part.commit()) is not None:
                self._tell("progress", path=self.file.path, bytes=durable, received=self.received)

    def close(self) -> None:
        """Closes the part; the next attempt reads it again."""
        self._part.close()

    def forget(self) -> None:
        """Closes and removes the unfinished file. Raises FetchFailed."""
        self.close()
        with _disk_failures(self.file.path):
            self._landing.forget(self.file.path)

    # An attempt

    def _look_at_landed(self) -> Done | None:
        path = self._landing.target(self.file.path)
        landed = look_at_landed(self.file, path, self._terms.background.following(self._hashing))
        if landed is None:
            return None
        found, differs = landed
        if differs is not None:
            self._set_aside(path, differs, self.failures["mismatch"], landed=True)
            return None
        self.forget()
        unproven = self.file.size is None and self.file.sha256 is None
        return Done("kept", found.size, found.sha256, found.cached, unproven)

    def _open(self) -> None:
        if rotten := self._part.open(self._hashing):
            reason = "what was kept is not what was written"
            self._tell("anew", path=self.file.path, bytes=rotten, reason=reason)
        self.failures["mismatch"] = max(self.failures["mismatch"], self._part.record.mismatches)
        self._tell("start", path=self.file.path, offset=self._part.size)

    def _fetch(self, caller: HttpClient) -> None:
        if self._part.size and not resume_offset(self._part.kept, self.file, self._part.size):
            self._restart("nothing would show that the rest is of the same content")
        kept = self._part.kept
        with caller.open(self.file.url, kept.offset, kept.validator) as (answer, chunks):
            try:
                total = judge(answer, kept, self.file)
            except FetchFailed as failure:
                if failure.kind == "anew":
                    self._restart(failure.reason)
                    if not kept.offset:
                        failure.kind = "broken"  # no bytes could be dropped: only a pause can help
                raise
            if kept.offset and answer.status != 206:
                self._restart(f"{answer.where} sends it from the start")
            self._part.note(answer, total)
            self._take(answer.where, chunks, self.file.size if total is None else total)

    def _take(self, where: str, chunks: Iterator[bytes], total: int | None) -> None:
        watch = RateWatch(self._terms.min_rate, self._terms.read_s)
        read_from = time.monotonic()
        try:
            for chunk in chunks:
                waited_s = time.monotonic() - read_from
                self.received += len(chunk)
                self._part.receive(chunk, total)
                if watch.add(waited_s, len(chunk)):
                    raise FetchFailed("slow", f"{where} sends too slowly")
                self._stop_if_asked()
                if pause_s := self._terms.bandwidth.take(len(chunk)):
                    self._wake.wait(pause_s)
                read_from = time.monotonic()
        finally:
            self._part.write_pending()
        if total is not None and self._part.size < total:
            raise FetchFailed("short", f"{where} ended {total - self._part.size} bytes early")

    def _finish(self) -> Done:
        if (differs := self._part.mismatch()) is not None:
            self._part.close()
            count = self.failures["mismatch"] + 1
            self._set_aside(self._landing.part(self.file.path), differs, count, landed=False)
            raise FetchFailed("mismatch", f"{self.file.path} has the sum {differs[1]}, not {differs[0]}")
        unproven = self._part.total is None and self.file.sha256 is None
        size, sha256 = self._part.publish()
        return Done("fetched", size, sha256, cached=False, unproven=unproven)

    # Parts of an attempt

    def _restart(self, reason: str) -> None:
        if dropped := self._part.restart():
            self._tell("anew", path=self.file.path, bytes=dropped, reason=reason)

    def _set_aside(self, bad: Path, differs: tuple[str, str], count: int, *, landed: bool) -> None:
        """Keeps wrong content as evidence, and reports it."""
        fields = {"expected": differs[0], "found": differs[1], "landed": landed}
        terms = self._terms
        place = self._landing.keep_evidence(bad, self.file.path, fields, terms.keep_files, terms.keep_bytes)
        if not landed:
            self._part.start_over(count)  # the count is durable before the report
        self._tell("mismatch", path=self.file.path, about={**fields, "count": count, "evidence": place})

    def _stop_if_asked(self) -> None:
        if self._wake.is_set():
            raise Stopped

    def _hashing(self, done: int) -> None:
        self._stop_if_asked()
        self._tell_hashing(done)


@contextlib.contextmanager
def _disk_failures(path: str) -> Iterator[None]:
    """Turns errors of the disk into FetchFailed."""
    try:
        yield
    except UnavailableError as error:
        raise FetchFailed("gone", str(error)) from error
    except OSError as error:
        kind = "disk_full" if error.errno in FULL else "gone" if error.errno in _AWAY else "storage"
        raise FetchFailed(kind, f"{path}: {error}") from error
