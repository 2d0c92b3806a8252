"""The import of one place: recognised, surveyed, claimed, copied, sealed and published as a shard set.

Nothing is written before everything was read once and found right. The copy is the set's own: a hard link
would leave its bytes in other hands, and a program that prepares its data again writes into the same file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.shards.exchange.array_writer import Sink
from stoker.shards.exchange.import_source import Found, ImportRefused, look_at, tokenizer_refusal
from stoker.shards.exchange.import_tokens import Progress, Stream, Survey, Tokens, conclude, pieces, survey
from stoker.shards.format.identity import dtype_for, set_key
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    MANIFEST,
    SPLITS,
    SUMS,
    DataFile,
    EndOfText,
    Imported,
    ImportedBooks,
    Manifest,
    data_name,
    sums_text,
)
from stoker.shards.format.proof import prove_set
from stoker.store.durable_copy import insist_on_room
from stoker.store.errors import DataError, StorageError
from stoker.store.files import canonical_json, make_dir, publish_dir, remove_tree, write_atomic
from stoker.store.hashing import hash_file
from stoker.store.names import new_id, utc_now

# Gets what is there, gives the path under which it is on record now; None where another has its set.
Claim = Callable[[Survey], str | None]


@dataclass(frozen=True)
class ImportTask:
    """One import; `building` and `shards` are directories on hot, `floor` the bytes to stay free there."""

    place: Path
    dataset: str
    build_id: str
    shard_tokens: int
    tokenizer_sha256: str
    vocab_size: int
    eot: int
    building: Path
    shards: Path
    floor: int
    stated_tokenizer: str | None
    trust_tokenizer: bool


@dataclass(frozen=True)
class ImportedSet:
    """A published set; `new`: it was not there before. `notes` are what was passed over, in words."""

    manifest: Manifest
    new: bool
    notes: tuple[str, ...] = ()


def import_place(task: ImportTask, claim: Claim, progress: Progress) -> ImportedSet | None:
    """Import it; None where another source has its set.

    Raises ImportRefused for what is not taken over, DataError for a wrong set at its target, StorageError
    where a disk does not do what it should.
    """
    found = look_at(task.place, dtype_for(task.vocab_size))
    if refusal := tokenizer_refusal(
        task.tokenizer_sha256, found.tokenizer, task.stated_tokenizer, trusted=task.trust_tokenizer
    ):
        raise ImportRefused(f"{task.place}: {refusal}")
    content = survey(found, vocab_size=task.vocab_size, eot=task.eot, progress=progress)
    path = claim(content)
    if path is None:
        return None
    key = set_key(content.sha256, task.build_id)
    target = task.shards / key[:16]
    if os.path.lexists(target):
        return _examine(target, key, progress)
    make_dir(task.building)
    insist_on_room(task.building, content.size, task.floor)
    building = task.building / f"import-{new_id()}"
    make_dir(building)
    try:
        shards = _copy(task, found, content, building, progress)
        manifest = _seal(task, content, shards, building, progress)
        write_atomic(building / BUILD_NOTE, canonical_json(_note(path, task.place, found)) + b"\n")
        make_dir(task.shards)
        publish_dir(building, target)
    except BaseException:
        with contextlib.suppress(StorageError):  # the first error matters; the next start sweeps what is left
            remove_tree(building)
        raise
    return ImportedSet(manifest, new=True, notes=found.notes)


class Shard:
    """One shard being written: its tokens, and the end offset of each document in them."""

    def __init__(self, directory: Path, split: str, number: int, most: int) -> None:
        self.sinks = [Sink(directory / data_name(split, number, kind)) for kind in ("bin", "idx")]
        self.full, self._most, self._end = False, most, 0
        self.tokens = self.documents = 0

    def append(self, piece: Tokens, eot: int, end_of_text: EndOfText | None) -> int:
        """Take tokens until the shard is full; returns how many.

        It is full with the first document that ends behind `most` tokens, or with exactly so many where
        documents are not known: the cut depends on the tokens alone, not on the files they came in.
        """
        ends: Any = np.flatnonzero(piece == eot) if end_of_text else np.empty(0, np.int64)
        ends = ends + 1 if end_of_text == "after" else ends[ends + self.tokens > 0]
        cuts = ends[ends + self.tokens >= self._most] if end_of_text else [self._most - self.tokens]
        self.full = len(cuts) > 0 and cuts[0] <= piece.size
        taken = int(cuts[0]) if self.full else piece.size
        self._index((ends[ends <= taken] + self.tokens).astype("<u8"))
        self.sinks[0].write(piece[:taken].data)
        self.tokens += taken
        return taken

    def finish(self) -> None:
        """End the shard: tokens behind its last end of text are a document too, one that was cut off."""
        if self._end != self.tokens:
            self._index(np.array([self.tokens], "<u8"))
        for sink in self.sinks:
            sink.settle()
            sink.close()

    def _index(self, ends: Any) -> None:
        if ends.size:
            self.sinks[1].write(ends.data)
            self.documents, self._end = self.documents + ends.size, int(ends[-1])


Shards = dict[str, list[Shard]]


def _copy(task: ImportTask, found: Found, content: Survey, building: Path, progress: Progress) -> Shards:
    """Read everything once more, into a set's files; refused unless it is what was surveyed."""
    streams = {split: Stream() for split in SPLITS}
    shards: Shards = {}
    for split, stream in streams.items():
        read = stream.see(pieces(found, split, task.vocab_size, progress), task.eot)
        shards[split] = list(_write_split(task, split, read, content.end_of_text, building))
    if conclude(streams, eot=task.eot, dtype=dtype_for(task.vocab_size)) != content:
        raise ImportRefused(
            f"{task.place}: it changed while it was read; import it when nothing writes to it"
        )
    return shards


def _write_split(
    task: ImportTask, split: str, read: Iterator[Tokens], end_of_text: EndOfText | None, building: Path
) -> Iterator[Shard]:
    """The finished shards of a split; one without tokens has an empty one."""
    number, shard = 0, Shard(building, split, 0, task.shard_tokens)
    for piece in read:
        left = piece
        while left.size:
            if shard.full:
                shard.finish()
                yield shard
                number += 1
                shard = Shard(building, split, number, task.shard_tokens)
            left = left[shard.append(left, task.eot, end_of_text) :]
    shard.finish()
    yield shard


def _seal(task: ImportTask, content: Survey, shards: Shards, building: Path, progress: Progress) -> Manifest:
    """Read back what was written, then write manifest and sums.

    Raises StorageError where the disk gives back other bytes.
    """
    known = content.end_of_text is not None
    files: dict[str, DataFile] = {}
    for shard in (shard for of_split in shards.values() for shard in of_split):
        counts = ((shard.tokens, shard.documents if known else None), (None, None))
        for sink, told in zip(shard.sinks, counts, strict=True):
            back = hash_file(sink.path, progress=progress)
            if (back.size, back.sha256) != (sink.size, sink.sha256):
                raise StorageError(
                    f"{sink.path}: the disk gives back other bytes than were written; check this disk and "
                    "this machine's memory"
                )
            files[sink.path.name] = DataFile(sink.size, sink.sha256, *told)
    documents = {split: sum(one.documents for one in of_split) for split, of_split in shards.items()}
    manifest = Manifest(
        dataset=task.dataset,
        key=set_key(content.sha256, task.build_id),
        build_id=task.build_id,
        source_size=content.size,
        source_sha256=content.sha256,
        tokenizer_sha256=task.tokenizer_sha256,
        vocab_size=task.vocab_size,
        eot=task.eot,
        dtype=dtype_for(task.vocab_size),
        books=ImportedBooks(documents if known else dict.fromkeys(SPLITS), content.tokens),
        files=files,
        imported=Imported(content.end_of_text),
    )
    Manifest.parse(manifest.to_bytes())  # what a reader would refuse is not published
    write_atomic(building / MANIFEST, manifest.to_bytes())
    hashes = {name: file.sha256 for name, file in files.items()} | {MANIFEST: manifest.sha256}
    write_atomic(building / SUMS, sums_text(hashes))
    return manifest


def _examine(target: Path, key: str, progress: Progress) -> ImportedSet:
    """The set that is at the target already, proven.

    Raises StorageError where it cannot be read now: that is no verdict.
    """
    proof = prove_set(target, key=key, progress=progress)
    if proof.verdict == "unreadable":
        raise StorageError(f"{target}: {proof.reason}; check the disk and try again")
    if proof.manifest is None:
        raise DataError(f"{target}: {proof.reason}; start the stage-shard loop, which sets it aside")
    return ImportedSet(proof.manifest, new=False)


def _note(path: str, place: Path, found: Found) -> dict[str, Any]:
    """Where it came from: for people, not part of the set's identity."""
    told = {"from": found.form, "place": str(place), "files": len(found.files)}
    told |= {"tokenizer": found.tokenizer, "notes": list(found.notes)}
    return {"v": 1, "source": path, "time": utc_now(), "imported": told}
