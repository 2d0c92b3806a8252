"""Measures how fast a source sends: reads its first files for a while and keeps no bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, Kept, judge


@dataclass(frozen=True)
class Probed:
    """The bytes and seconds of a probe, the sizes reported by the server, and the first failure."""

    bytes: int
    seconds: float
    sizes: list[int]
    failure: FetchFailed | None


def probe(files: Sequence[RemoteFile], seconds: float, manners: Manners) -> Probed:
    """Reads every file at once until the time is up, each at most to its end."""
    readers = [_Reader(Caller(manners), file) for file in files]
    began = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.0, began + seconds - time.monotonic()))
    failure = next((reader.failure for reader in readers if reader.failure is not None), None)
    sizes = [reader.size for reader in readers if reader.size is not None]
    return Probed(sum(reader.read for reader in readers), time.monotonic() - began, sizes, failure)


class _Reader(threading.Thread):
    def __init__(self, caller: Caller, file: RemoteFile) -> None:
        super().__init__(daemon=True)
        self.read = 0
        self.size: int | None = None
        self.failure: FetchFailed | None = None
        self._caller, self._file = caller, file

    def run(self) -> None:
        try:
            with self._caller.open(self._file.url) as (answer, chunks):
                self.size = judge(answer, Kept(), self._file)
                for chunk in chunks:
                    self.read += len(chunk)
        except FetchFailed as failure:
            self.failure = failure
