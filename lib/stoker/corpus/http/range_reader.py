"""A file on a server as something to seek and read in: only the bytes that are asked for come over.

Nothing is proven of them: whoever needs the truth has the whole file fetched.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from stoker.corpus.http.client import Caller
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import TRANSIENT, FetchFailed, Kept, judge

TAIL_BYTES = 64 << 10  # what a parquet reader asks for first
_HEAD_BYTES = 4  # its magic; the answer says how large the file is
TRIES = 6  # without a byte between them
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0


class RangeFile:
    """Reads of one remote file; raises FetchFailed where they do not go, also when its content changes.

    `fetched` counts the bytes that came. Its first bytes, its last, and what hold() was told of are kept, so
    that looking at them in small steps costs no request each.
    """

    def __init__(self, caller: Caller, file: RemoteFile, sleep: Callable[[float], None] = time.sleep) -> None:
        self.fetched = 0
        self.closed = False
        self._caller, self._file, self._sleep = caller, file, sleep
        self._validator, self._total = "", file.size
        self._at = 0
        self._kept: list[tuple[int, bytes]] = []  # head, tail, what is held
        head = self._get(0, _HEAD_BYTES)
        if self._total is None:
            raise FetchFailed("refused", f"{self._where} does not say how large it is")
        self.size = self._total
        tail_at = max(0, self.size - TAIL_BYTES)
        self._kept = [(0, head), (tail_at, self._get(tail_at, self.size)), (0, b"")]

    @property
    def _where(self) -> str:
        return self._file.path

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        end = self.size if size < 0 else min(self.size, self._at + size)
        if end <= self._at:
            return b""
        data = self._held(self._at, end)
        if data is None:
            data = self._get(self._at, end)
        self._at = end
        return data

    def hold(self, offset: int, end: int) -> None:
        """Fetch these bytes in one request, and keep them until the next call."""
        offset, end = max(0, offset), min(self.size, end)
        self._kept[-1] = (0, b"")
        if offset < end and self._held(offset, end) is None:
            self._kept[-1] = (offset, self._get(offset, end))

    def _held(self, offset: int, end: int) -> bytes | None:
        for at, data in self._kept:
            if at <= offset and end <= at + len(data):
                return data[offset - at : end - at]
        return None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As a file's."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """No."""
        return False

    def flush(self) -> None:
        """There is nothing to write."""

    def close(self) -> None:
        """Nothing is open between two reads."""
        self.closed = True

    def _get(self, offset: int, end: int) -> bytes:
        data = bytearray()
        tries = 0
        while True:
            got = len(data)
            try:
                self._ask(data, offset, end)
                return bytes(data)
            except FetchFailed as failure:
                tries = 0 if len(data) > got else tries + 1
                wait_s = max(FIRST_WAIT_S * 2.0**tries, failure.retry_after_s or 0.0)
                may = failure.kind == "expired" or (failure.kind in TRANSIENT and failure.kind != "anew")
                if not may or tries >= TRIES or wait_s > LONGEST_WAIT_S:
                    raise
                self._sleep(wait_s)

    def _ask(self, data: bytearray, offset: int, end: int) -> None:
        """Append what comes of [offset + what is there, end)."""
        at = offset + len(data)
        if self._total is not None:
            end = min(end, self._total)
        if at >= end:
            return
        with self._caller.open(self._file.url, at, self._validator, end=end) as body:
            go = judge(body.answer, Kept(at, self._validator, self._total), self._file)
            if go.offset != at:
                raise FetchFailed("refused", f"{body.answer.where} sends no parts of a file, or it changed")
            self._validator = self._validator or body.answer.validator
            if self._total is None and go.total is not None:
                self._total = go.total
                end = min(end, go.total)
            for chunk in body.chunks():
                self.fetched += len(chunk)
                data += chunk[: end - offset - len(data)]
                if offset + len(data) >= end:
                    return
        raise FetchFailed("short", f"{body.answer.where} ended too early")
