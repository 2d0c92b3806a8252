"""A quick look at a shard set: everything that disagrees, found without reading its tokens whole.

Document ends and row numbers are hashed: they are a few hundredths of the tokens at most, and a document
dropped in the middle of one shows nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.shards.format.manifest import (
    BUILD_NOTE,
    MANIFEST,
    OFFSET_BYTES,
    SPLITS,
    SUMS,
    TOKEN_BYTES,
    Manifest,
    ManifestInvalid,
    beside,
    parse_sums,
)
from stoker.store.errors import UnknownFormat
from stoker.store.files import opened
from stoker.store.hashing import hash_file

SAMPLES = 32  # document ends looked at in each token file


@dataclass(frozen=True)
class Inspection:
    """What a set says of itself, None where its manifest is unusable, and each finding as "file: figure"."""

    manifest: Manifest | None
    manifest_sha256: str | None
    findings: tuple[str, ...]


def inspect_set(path: Path) -> Inspection:
    """Compare manifest, SHA256SUMS, sizes, indices and sampled document ends; raises OSError.

    Raises UnknownFormat where its manifest, true to its sum, is of a version that is not known here.
    """
    names = {entry.name for entry in path.iterdir()}
    missing = [f"{name}: missing" for name in (MANIFEST, SUMS) if name not in names]
    if MANIFEST not in names:
        return Inspection(None, None, tuple(missing))
    data = (path / MANIFEST).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        manifest = Manifest.parse(data, path / MANIFEST)
    except (ManifestInvalid, UnknownFormat) as error:
        unlisted = tuple(_sums_findings(path, names, {MANIFEST: sha256}))
        if isinstance(error, UnknownFormat) and not (unlisted or missing):
            raise  # it is what was written: no finding
        return Inspection(None, sha256, (f"{MANIFEST}: {error}", *unlisted, *missing))
    listed = {name: file.sha256 for name, file in manifest.files.items()} | {MANIFEST: sha256}
    findings = [*missing, *_sums_findings(path, names, listed), *_file_findings(path, names, manifest)]
    unknown = names - set(listed) - {SUMS, BUILD_NOTE}
    findings += [f"{name}: in no list of this set" for name in sorted(unknown)]
    return Inspection(manifest, sha256, tuple(findings))


def _sums_findings(path: Path, names: set[str], listed: dict[str, str]) -> Iterator[str]:
    if SUMS not in names:
        return
    try:
        sums = parse_sums((path / SUMS).read_bytes())
    except ManifestInvalid as error:
        yield f"{SUMS}: {error}"
        return
    for name, sha256 in sorted(listed.items()):
        if sums.get(name) != sha256:
            yield f"{SUMS}: sha256 of {name} is {str(sums.get(name))[:16]}, the set says {sha256[:16]}"
    if len(listed) > 1:  # else the manifest is unusable: nothing to compare with
        unknown = sorted(set(sums) - set(listed))
        yield from (f"{SUMS}: names {name}, which {MANIFEST} does not" for name in unknown)


def _file_findings(path: Path, names: set[str], manifest: Manifest) -> Iterator[str]:
    right = set()
    for name, file in manifest.files.items():
        if name not in names:
            yield f"{name}: missing"
        elif not stat.S_ISREG((found := (path / name).lstat()).st_mode):
            yield f"{name}: not a regular file"
        elif found.st_size != file.size:
            yield f"{name}: {found.st_size} bytes, the manifest says {file.size}"
        else:
            right.add(name)
    for split in SPLITS:
        bins = manifest.bins(split)
        for name, file in bins:
            index = beside(name, "idx")
            if {name, index} <= right and file.tokens:
                yield from _document_findings(path, name, index, manifest, last_file=name == bins[-1][0])
            if (rows := beside(name, "row")) in right:
                yield from _hash_findings(path, rows, manifest)


def _document_findings(
    path: Path, name: str, index: str, manifest: Manifest, *, last_file: bool
) -> Iterator[str]:
    """The last offset, and end-of-text where sampled ones say: another file's tokens have none there."""
    width, file = TOKEN_BYTES[manifest.dtype], manifest.files[name]
    documents = file.documents or 1  # not known: the whole file stands as one
    imported = manifest.imported
    with opened(path / name, os.O_RDONLY) as tokens, opened(path / index, os.O_RDONLY) as ends:
        last = _number(ends, documents - 1, OFFSET_BYTES)
        if last != file.tokens:
            yield f"{index}: ends at token {last}, the manifest says {file.tokens}"
            return
        where = "after" if imported is None else imported.end_of_text
        for document in sorted({number * documents // SAMPLES for number in range(SAMPLES)}) if where else ():
            begin = _number(ends, document - 1, OFFSET_BYTES) if document else 0
            end = _number(ends, document, OFFSET_BYTES)
            place = begin if where == "before" else end - 1
            # What was imported may begin, or end, within a document.
            torn = document == 0 if where == "before" else last_file and document == documents - 1
            excused = imported is not None and torn
            if not 0 <= place < last or (_number(tokens, place, width) != manifest.eot and not excused):
                yield f"{name}: document {document} does not end at token {end}, where {index} says"
                return
    yield from _hash_findings(path, index, manifest)


def _hash_findings(path: Path, name: str, manifest: Manifest) -> Iterator[str]:
    found, told = hash_file(path / name, past_cache=False).sha256, manifest.files[name].sha256
    if found != told:
        yield f"{name}: sha256 {found[:16]}, the manifest says {told[:16]}"


def _number(descriptor: int, place: int, width: int) -> int:
    return int.from_bytes(os.pread(descriptor, width, place * width), "little")
