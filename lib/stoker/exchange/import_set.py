"""Imports one place: recognises its files, copies them, seals the copy and publishes it as a shard set.

The set has its own copy: with a hard link, another program that prepares its data again would write into the
set's file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.corpus.records.dataset import DatasetPin
from stoker.corpus.records.sources import PUBLISHED, SPLITS, Books, Source, write_source
from stoker.exchange.export_out import Sink
from stoker.exchange.import_source import (
    Found,
    ImportRefused,
    Progress,
    Tokens,
    end_of_text,
    look_at,
    pieces,
    tokenizer_refusal,
)
from stoker.shards.format.identity import dtype_for, set_key
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    TOKEN_BYTES,
    DataFile,
    EndOfText,
    Manifest,
    data_name,
    write_manifest,
)
from stoker.shards.format.proof import prove_set, standing_set
from stoker.store.direct import insist_on_room
from stoker.store.errors import DataError, StorageError
from stoker.store.files import canonical_json, make_dir, publish_dir, remove_tree, write_atomic
from stoker.store.layout import HotLayout, StateLayout
from stoker.store.record import new_id, utc_now

FOLDER = "import"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class ImportTask:
    """One import of a place into the dataset of a pin."""

    place: Path
    layout: StateLayout
    hot: HotLayout
    pin: DatasetPin
    sources: Mapping[str, Source]  # the records of the dataset
    taken: Collection[str]  # paths that a file of the dataset has, or may have
    floor: int  # bytes of hot that stay free
    stated_tokenizer: str | None
    trust_tokenizer: bool


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    source: Source  # its record now
    new: bool  # its set did not exist before
    notes: tuple[str, ...] = ()  # on files that were passed over


def import_place(task: ImportTask, progress: Progress) -> Imported:
    """Copies a place, records it, publishes the set, and records the published set.

    Raises ImportRefused for tokens that cannot be imported, DataError for a wrong set at the target,
    StorageError where a disk fails.
    """
    tokenizer, root = task.pin.tokenizer, task.hot.building
    dtype = dtype_for(tokenizer.vocab_size)
    found = look_at(task.place, dtype)
    if refusal := tokenizer_refusal(
        tokenizer.sha256, found.tokenizer, task.stated_tokenizer, trusted=task.trust_tokenizer
    ):
        raise ImportRefused(f"{task.place}: {refusal}")
    make_dir(root)
    insist_on_room(root, sum(file.tokens for file in found.files) * TOKEN_BYTES[dtype], task.floor)
    building = root / f"import-{new_id()}"
    make_dir(building)
    try:
        manifest = _copy(task.pin, found, building, progress)
        source = claim(task, size=manifest.source_size, sha256=manifest.source_sha256)
        if source.state in PUBLISHED:
            return Imported(source, new=False)
        write_source(task.layout, source)
        target = task.hot.shards(task.pin.dataset) / manifest.key[:16]
        is_new = not os.path.lexists(target)
        if is_new:
            note = _note(source.path, task.place, found)
            write_atomic(building / BUILD_NOTE, canonical_json(note) + b"\n")
            make_dir(target.parent)
            publish_dir(building, target)
        else:
            manifest = _examine(target, manifest.key, progress)
    finally:
        # the first error matters, and the next start removes the rest
        with contextlib.suppress(StorageError):
            remove_tree(building)
    named = {"key": manifest.key, "manifest_sha256": manifest.sha256, "books": manifest.books}
    source = source.moved("proven", reason=None, **named)
    write_source(task.layout, source)
    return Imported(source, is_new, found.notes if is_new else ())


def claim(task: ImportTask, *, size: int, sha256: str) -> Source:
    """Returns the record of an imported content: its earlier record, else a new one named after its place.

    A published record means that the set exists already.
    """
    known = [source for source in task.sources.values() if source.imported and source.sha256 == sha256]
    if published := next((source for source in known if source.state in PUBLISHED), None):
        return published
    if known:
        return known[0] if known[0].state == "seen" else known[0].renewed(size=size, sha256=sha256)
    path = path_of(task.place.name)
    path += f"-{sha256[:8]}" if path in task.sources or path in task.taken else ""
    return Source(task.pin.dataset, path, size, sha256, imported=True)


def path_of(name: str) -> str:
    """Returns the path of an import, from the name of its place; never a path that a parquet file has."""
    plain = _PLAIN.sub("_", name).strip("._")[:80] or "tokens"
    return f"{FOLDER}/{plain.removesuffix('.bin').removesuffix('.parquet')}"


class Shard:
    """One shard in writing: its tokens, and the end offset of each document in them."""

    def __init__(self, directory: Path, split: str, number: int, most: int) -> None:
        self.sinks = [Sink(directory / data_name(split, number, kind)) for kind in ("bin", "idx")]
        self.full, self._most, self._end = False, most, 0
        self.tokens = self.documents = 0

    def append(self, piece: Tokens, eot: int, where: EndOfText | None) -> int:
        """Appends tokens until the shard is full; returns how many.

        A shard is full with the first document that ends behind `most` tokens, or with exactly that many
        where documents are not known: the cut depends on the tokens alone, not on the files that they came
        in.
        """
        ends: Any = np.flatnonzero(piece == eot) if where else np.empty(0, np.int64)
        ends = ends + 1 if where == "after" else ends[ends + self.tokens > 0]
        cuts = ends[ends + self.tokens >= self._most] if where else [self._most - self.tokens]
        self.full = len(cuts) > 0 and cuts[0] <= piece.size
        taken = int(cuts[0]) if self.full else piece.size
        self._index((ends[ends <= taken] + self.tokens).astype("<u8"))
        self.sinks[0].write(piece[:taken].data)
        self.tokens += taken
        return taken

    def finish(self, *, counted: bool) -> dict[str, DataFile]:
        """Returns its files. Tokens behind the last end-of-text count as one document, which was cut off."""
        if self._end != self.tokens:
            self._index(np.array([self.tokens], "<u8"))
        tokens, index = self.sinks
        tokens.close()
        index.close()
        return {
            tokens.path.name: DataFile(
                tokens.size, tokens.sha256, self.tokens, self.documents if counted else None
            ),
            index.path.name: DataFile(index.size, index.sha256),
        }

    def _index(self, ends: Any) -> None:
        if ends.size:
            self.sinks[1].write(ends.data)
            self.documents, self._end = self.documents + ends.size, int(ends[-1])


def _copy(pin: DatasetPin, found: Found, building: Path, progress: Progress) -> Manifest:
    """Writes a whole set of the tokens found and proves it; raises StorageError for a disk that lies."""
    vocab_size, eot, shard_tokens = (
        pin.tokenizer.vocab_size,
        pin.tokenizer.eot,
        int(pin.build["shard_tokens"]),
    )
    dtype = dtype_for(vocab_size)
    where = end_of_text(found, vocab_size, eot, progress)
    files: dict[str, DataFile] = {}
    hashes: dict[str, str] = {}
    for split in SPLITS:
        digest, number = hashlib.sha256(), 0
        shard = Shard(building, split, number, shard_tokens)
        for piece in pieces(found, split, vocab_size, progress):
            digest.update(piece.data)
            left = piece
            while left.size:
                if shard.full:
                    files |= shard.finish(counted=where is not None)
                    number += 1
                    shard = Shard(building, split, number, shard_tokens)
                left = left[shard.append(left, eot, where) :]
        files |= shard.finish(counted=where is not None)  # a split without tokens has an empty shard
        hashes[split] = digest.hexdigest()
    bins = {split: [files[name] for name in files if name.startswith(f"{split}-")] for split in SPLITS}
    tokens = [sum(file.tokens or 0 for file in bins[split]) for split in SPLITS]
    documents = [sum(file.documents or 0 for file in bins[split]) if where else None for split in SPLITS]
    in_all = sum(each or 0 for each in documents) if where else None
    # The hash names the content, whatever files held it: the same tokens make the same set.
    content = hashlib.sha256(canonical_json({"import": 1, "dtype": dtype, **hashes})).hexdigest()
    manifest = Manifest(
        dataset=pin.dataset,
        key=set_key(content, pin.build_id),
        build_id=pin.build_id,
        source_size=sum(tokens) * TOKEN_BYTES[dtype],
        source_sha256=content,
        tokenizer_sha256=pin.tokenizer.sha256,
        vocab_size=vocab_size,
        eot=eot,
        dtype=dtype,
        books=Books(None, in_all, None, sum(tokens), documents[0], tokens[0], documents[1], tokens[1], None),
        files=files,
        end_of_text=where,
    )
    write_manifest(building, manifest)
    proof = prove_set(building, key=manifest.key, progress=progress)
    if proof.verdict != "proven":
        raise StorageError(
            f"{building}: {proof.reason}: the disk gives back other bytes than were written; check this disk "
            "and this machine's memory"
        )
    return manifest


def _examine(target: Path, key: str, progress: Progress) -> Manifest:
    """Proves the set that is at the target already and returns its manifest."""
    proof = standing_set(target, key, progress)
    if proof.manifest is None:
        raise DataError(f"{target}: {proof.reason}; start the stage-shard loop, which sets it aside")
    return proof.manifest


def _note(path: str, place: Path, found: Found) -> dict[str, Any]:
    """Returns where the tokens came from: for people, not part of the set's identity."""
    fields = {"from": found.form, "place": str(place), "files": len(found.files)}
    fields |= {"tokenizer": found.tokenizer, "notes": list(found.notes)}
    return {"v": 1, "source": path, "time": utc_now(), "imported": fields}
