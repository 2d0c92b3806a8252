"""The bytes of one file as they come: received, written, made durable, claimed, named in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from stoker.corpus.fetch.landing import Landing, PartRecord, part_bytes
from stoker.corpus.fetch.part_content import Content, PartFile
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import Answer, FetchFailed, Go, Kept, resume_offset, written_end

# Written when so much is pending or so long after the last write: a kill takes what is not written.
_CHUNK, _WRITE_S = 1 << 20, 0.02
# With fewer bytes to come no claim of none is worth its sync.
_WORTH_CLAIMING = 1 << 20


class GrowingPart:
    """One unfinished file. A commit may come from another thread while bytes are received.

    Every method raises OSError or UnavailableError as the disk has it; close() and open() may alternate.
    """

    def __init__(self, file: RemoteFile, landing: Landing) -> None:
        self._file, self._landing = file, landing
        self._committing = threading.Lock()  # one commit in flight; taken before the other
        self._lock = threading.Lock()  # content, part and pending as one
        self._part: PartFile | None = None
        self._content = Content(file)
        self._pending = bytearray()  # received, and not yet a chunk worth writing; a commit writes it
        self._wrote_at = 0.0
        self._durable = 0
        self._claim: PartRecord | None = None  # what the disk has
        self.record = PartRecord(landing.dataset, file.path, sums=file.identity, revision=file.revision)

    @property
    def opened(self) -> bool:
        """Whether it stands ready to receive."""
        return self._part is not None

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._content.size

    @property
    def kept(self) -> Kept:
        """What the next bytes must fit to."""
        return replace(self.record.kept, offset=self.size)

    @property
    def total(self) -> int | None:
        """The whole file's size, where the listing or an answer told it."""
        return self._file.size if self._file.size is not None else self.record.total

    @property
    def uncommitted(self) -> int:
        """Bytes that a power cut would take."""
        return self._content.size + len(self._pending) - self._durable

    def open(self, tick: Callable[[int], None]) -> int:
        """Take up what is durable of it, and what else a process wrote since this machine's start, read back.

        Returns the bytes that were claimed and are not there.
        """
        path = self._landing.part(self._file.path)
        record = self._claim = self._landing.read_part(self._file.path)
        claimed = 0 if record is None else record.offset
        if record is None or record.sums != self._file.identity:
            record = PartRecord(self._landing.dataset, self._file.path, sums=self._file.identity)
        size = part_bytes(path)
        offset = end = resume_offset(record.kept, self._file, size)
        if record.boot and record.boot == self._landing.boot:
            end = written_end(record.kept, self._file, size, offset)
        part = PartFile(path, end)
        content = Content.of_prefix(self._file, part.descriptor, offset, tick)
        good = content.size == offset and (not offset or content.sha256 == record.prefix)
        if good:
            content.read_on(part.descriptor, end, tick)
        rotten = 0
        if not good or content.size != end:
            # What the disk gives back is not what was made durable: nothing of it can be believed.
            part.restart()
            content, offset, rotten = Content(self._file), 0, offset
        with self._lock:
            self._part, self._content, self._durable = part, content, offset
        self.record = replace(record, offset=offset, revision=self._file.revision)
        if claimed > offset:
            # Before other bytes grow under the old claim: a kill would leave them claimed.
            self.record = replace(self.record, prefix="", validator="", etag="", total=None)
            self._write_claim()
        self.commit()
        return rotten

    def note(self, answer: Answer, go: Go) -> None:
        """Whose bytes come now; they may be taken up after a kill where the disk has this before them."""
        with self._committing:
            self.record = replace(
                self.record,
                validator=answer.validator,
                etag=answer.etag,
                total=go.total,
                boot=self._landing.boot,
            )
            claim = self._claim or PartRecord("", "")
            if (claim.boot, claim.validator) != (self.record.boot, answer.validator):
                to_come = _WORTH_CLAIMING if go.total is None else go.total - self.size
                if claim.boot or to_come >= _WORTH_CLAIMING:
                    self._write_claim()

    def receive(self, chunk: bytes, total: int | None) -> None:
        """Take the next bytes; raises FetchFailed when they are more than there should be."""
        with self._lock:
            if total is not None and self._content.size + len(self._pending) + len(chunk) > total:
                raise FetchFailed("length", f"{self._file.path}: more bytes came than the {total} there are")
            self._pending += chunk
            if len(self._pending) >= _CHUNK or time.monotonic() >= self._wrote_at + _WRITE_S:
                self._write_pending()

    def write_pending(self) -> None:
        """File and sums take what was received."""
        with self._lock:
            self._write_pending()

    def forget_pending(self) -> None:
        """Drop what a full disk did not take: it is asked for again."""
        with self._lock:
            self._pending = bytearray()

    def commit(self) -> int | None:
        """Make what came durable, then claim it; the bytes durable now, None where nothing new is."""
        with self._committing:
            with self._lock:
                self._write_pending()
                if self._part is None or self._content.size == self._durable:
                    return None
                size, prefix, part = self._content.size, self._content.sha256, self._part
            part.make_durable()
            self.record = replace(self.record, offset=size, prefix=prefix, boot=self._landing.boot)
            self._write_claim()
            self._durable = size
            return size

    def restart(self) -> int:
        """Drop what came, durably, before other content is taken; returns how much that was."""
        with self._committing:
            with self._lock:
                dropped = self._content.size
                if self._part is not None:
                    self._part.restart()
                self._content, self._durable = Content(self._file), 0
                self._pending = bytearray()
            self.record = replace(self.record, offset=0, prefix="", validator="", etag="", total=None)
            self._write_claim()
        return dropped

    def mismatch(self) -> tuple[str, str] | None:
        """(expected, found) where the whole has another sum than the listing's."""
        return self._content.mismatch(self._file)

    def start_over(self, mismatches: int) -> None:
        """Close and claim nothing but that count; the bytes are somebody else's by now."""
        self.close()
        self.record = PartRecord(
            self._landing.dataset, self._file.path, sums=self._file.identity, mismatches=mismatches
        )
        self._write_claim()

    def publish(self) -> tuple[int, str]:
        """Give the whole its name; returns its size and sha256."""
        assert self._part is not None
        size, sha256 = self._content.size, self._content.sha256
        with self._committing:
            self._part.make_durable()
            self._durable = size  # no commit after this: it would claim a part that has left
            self._landing.publish(self._file.path)
        self.close()
        return size, sha256

    def close(self) -> None:
        """Let go of the bytes."""
        with self._committing, self._lock:
            if self._part is not None:
                self._part.close()
            self._part = None
            self._content, self._durable = Content(self._file), 0
            self._pending = bytearray()

    def _write_claim(self) -> None:
        self._landing.write_part(self.record)
        self._claim = self.record

    def _write_pending(self) -> None:
        self._wrote_at = time.monotonic()
        if not self._pending or self._part is None:
            return
        data, self._pending = self._pending, bytearray()
        try:
            self._part.append(data)
        except OSError:
            self._pending = bytearray(data)  # else what comes next would be written in its place
            raise
        self._content.add(data)
