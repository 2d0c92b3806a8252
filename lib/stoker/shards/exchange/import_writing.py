"""Imported tokens in: the data files of a set, cut into shards, sealed, and published by one rename."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.shards.exchange.array_writer import Sink
from stoker.shards.exchange.import_tokens import Tokens
from stoker.shards.format.identity import dtype_for
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    MANIFEST,
    SUMS,
    DataFile,
    EndOfText,
    Imported,
    ImportedBooks,
    Manifest,
    data_name,
    sums_text,
)
from stoker.store.errors import StorageError
from stoker.store.files import canonical_json, write_atomic
from stoker.store.hashing import hash_file


class SplitWriter:
    """The shards of train or val.

    Where documents are known a new shard begins with the first one that comes after `shard_tokens` tokens,
    else after exactly so many; so the cut depends on the tokens alone, not on the files they came in.
    """

    def __init__(
        self, directory: Path, split: str, *, shard_tokens: int, eot: int, end_of_text: EndOfText | None
    ) -> None:
        self._directory, self._split = directory, split
        self._most, self._eot, self._end_of_text = shard_tokens, eot, end_of_text
        self.files: dict[str, DataFile] = {}
        self.documents = self.tokens = 0
        self._number = 0
        self._full = False
        self._open()

    def append(self, piece: Tokens) -> None:
        """Append the next tokens."""
        while piece.size:
            if self._full:
                self.finish()
                self._open()
            ends = self._ends(piece)
            beyond = ends[ends + self._held >= self._most]
            taken = int(beyond[0]) if beyond.size else piece.size
            self._full = bool(beyond.size)
            if self._end_of_text is None:
                taken = min(piece.size, self._most - self._held)
                self._full = self._held + taken == self._most
            self._write(piece[:taken], ends[ends <= taken])
            piece = piece[taken:]

    def finish(self) -> None:
        """End the shard: what stands behind its last end of text is a document too, one that was cut off."""
        if self._held and self._last_end != self._held:
            self._index.write(np.array([self._held], "<u8").data)
            self._counted += 1
        for sink in (self._bin, self._index):
            sink.settle()
        known = self._end_of_text is not None
        self.files[self._bin.path.name] = DataFile(
            self._bin.size, self._bin.sha256, self._held, self._counted if known else None
        )
        self.files[self._index.path.name] = DataFile(self._index.size, self._index.sha256)
        self.documents += self._counted
        self.tokens += self._held

    def close(self) -> None:
        """Let go of the files."""
        self._bin.close()
        self._index.close()

    def _open(self) -> None:
        if self._number:
            self.close()
        self._bin = Sink(self._directory / data_name(self._split, self._number, "bin"))
        self._index = Sink(self._directory / data_name(self._split, self._number, "idx"))
        self._number += 1
        self._held = self._last_end = self._counted = 0
        self._full = False

    def _write(self, tokens: Tokens, ends: Any) -> None:
        if ends.size:
            told = (ends + self._held).astype("<u8")
            self._index.write(told.data)
            self._last_end, self._counted = int(told[-1]), self._counted + ends.size
        self._bin.write(tokens.data)
        self._held += tokens.size

    def _ends(self, piece: Tokens) -> Any:
        """Where documents end in the piece, as numbers of its tokens before the end."""
        if self._end_of_text is None:
            return np.empty(0, np.int64)
        places = np.flatnonzero(piece == self._eot)
        if self._end_of_text == "after":
            return places + 1
        return places[places + self._held > 0]  # at the shard's front nothing has ended


@dataclass(frozen=True)
class SetIdentity:
    """What a manifest says beside books and files."""

    dataset: str
    key: str
    build_id: str
    source_size: int
    source_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    eot: int


def seal(
    directory: Path,
    identity: SetIdentity,
    writers: dict[str, SplitWriter],
    *,
    end_of_text: EndOfText | None,
    note: dict[str, Any],
    progress: Callable[[int], None],
) -> Manifest:
    """Read back what was written, then write manifest, build note and sums.

    Raises StorageError where the disk gives back other bytes.
    """
    files = {name: file for writer in writers.values() for name, file in writer.files.items()}
    for name, file in files.items():
        found = hash_file(directory / name, progress=progress)
        if (found.size, found.sha256) != (file.size, file.sha256):
            raise StorageError(
                f"{directory / name}: the disk gives back other bytes than were written; check this disk and "
                "this machine's memory"
            )
    known = end_of_text is not None
    manifest = Manifest(
        **vars(identity),
        dtype=dtype_for(identity.vocab_size),
        books=ImportedBooks(
            {split: writer.documents if known else None for split, writer in writers.items()},
            {split: writer.tokens for split, writer in writers.items()},
        ),
        files=files,
        imported=Imported(end_of_text),
    )
    Manifest.parse(manifest.to_bytes())  # what a reader would refuse is not published
    write_atomic(directory / MANIFEST, manifest.to_bytes())
    write_atomic(directory / BUILD_NOTE, canonical_json(note) + b"\n")
    hashes = {name: file.sha256 for name, file in files.items()} | {MANIFEST: manifest.sha256}
    write_atomic(directory / SUMS, sums_text(hashes))
    return manifest
