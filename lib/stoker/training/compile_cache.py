"""Keeps compiled code for later launches.

The cache costs time at most: what its seal does not prove is never loaded, because compiled code is run and
unpickled as it lies there. Where it cannot be used, this launch compiles in a directory of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from stoker.kit.lock import Lock
from stoker.store.errors import DataError, LockHeld, StorageError, UnknownFormat
from stoker.store.files import make_dir, remove_tree
from stoker.store.record import read_record, write_record


class CompileCache:
    """The directory of compiled code, locked for this process; a private one where that cannot be used.

    A seal lists the sha256 of every file, and what else the code depends on: `machine`, and what inductor
    does not ask for itself. If either differs, everything is removed and compiled again.
    """

    def __init__(self, root: Path, machine: Mapping[str, Any]) -> None:
        own = {"python": sys.version, "threads": torch.get_num_threads(), "cpu_flags": _cpu_flags()}
        self._made_by = {**machine, **own}
        self._sealed: dict[str, Any] = {}
        self._holds = ExitStack()
        self.directory = root / "blocks"
        try:
            make_dir(self.directory)
            lock = Lock.acquire(root / "blocks.lock", purpose="compiled code of a trainer")
            self._holds.callback(lock.release)
            self._prove()
        except (LockHeld, OSError) as problem:  # StorageError is an OSError
            private = self._holds.enter_context(TemporaryDirectory(prefix="stoker-compiled-"))
            self.directory = Path(private)
            print(f"trainer: blocks are compiled without a cache: {problem}", file=sys.stderr)

    def seal(self) -> None:
        """Writes the seal if code was compiled since the last one."""
        try:
            body = self._body()
            if body != self._sealed:
                write_record(self._seal, body)
                self._sealed = body
        except OSError as problem:  # also a directory that somebody deleted
            print(f"trainer: the next launch compiles again: {problem}", file=sys.stderr)

    def close(self) -> None:
        """Gives the directory free; a private one is removed."""
        self._holds.close()

    @property
    def _seal(self) -> Path:
        return self.directory / "seal.json"

    def _prove(self) -> None:
        for folder, _, _ in os.walk(self.directory):
            if not os.access(folder, os.W_OK):
                raise StorageError(f"{folder} cannot be written")
        with suppress(FileNotFoundError, DataError, UnknownFormat):
            self._sealed = read_record(self._seal)
        found = self._body()
        # A run that loaded libraries damaged here ended with other weights, and without an error.
        if found == self._sealed:
            return
        if found["files"] or self._sealed:
            print(f"trainer: {self.directory} is not as it was sealed; compiling again", file=sys.stderr)
        remove_tree(self.directory)
        make_dir(self.directory)

    def _body(self) -> dict[str, Any]:
        # Also what lies behind links, which inductor follows. Files of locks come and go; nothing reads them.
        found = (
            Path(folder, name)
            for folder, _, names in os.walk(self.directory, followlinks=True)
            for name in names
        )
        files = sorted(
            path for path in found if path.is_file() and path.suffix != ".lock" and path != self._seal
        )
        sums = {str(path.relative_to(self.directory)): _sha256(path) for path in files}
        return {"v": 1, "made_by": self._made_by, "files": sums}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cpu_flags() -> str:
    """Returns a digest of the processor's instruction sets: code for another one may not run at all."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()
