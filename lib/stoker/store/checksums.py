"""SHA256SUMS: the hashes of a directory's files, in the format of coreutils' `sha256sum -c`, written last."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from stoker.store.direct import Progress, hash_opened
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import file_beneath, inside, write_atomic

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_MOST_BYTES = 4 << 20


def write_checksums(directory: Path, sums: Mapping[str, str]) -> None:
    """Writes the file; `sums` maps a file's path below the directory to its sha256 in hex."""
    write_atomic(directory / SUMS, _listed(sums), durable=False)


def read_checksums(directory: Path) -> dict[str, str]:
    """Returns the sha256 of each file that is listed.

    Raises FileNotFoundError without the list, DataError where it is damaged, names a file outside the
    directory or one file twice.
    """
    file = directory / SUMS
    with storage_errors("read", file):
        data = file.read_bytes()[: _MOST_BYTES + 1]
    try:
        lines = data.decode().removesuffix("\n").split("\n") if data else []
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found or len(data) > _MOST_BYTES:
            raise DataError(f"{file}, line {number}: no hash and name of another file: {line[:100]!r}")
        inside(directory, match[2])
        found[match[2]] = match[1]
    return found


def prove_checksums(directory: Path, progress: Progress | None = None) -> tuple[dict[str, str], str]:
    """Hashes every file; returns the listed sums, and the first difference, "" where there is none.

    A file that is in no list differs, too, and so does a link. `progress` gets the bytes read so far of each
    file. Raises as read_checksums, and StorageError for a file that cannot be read.
    """
    sums = read_checksums(directory)
    for name, wanted in sums.items():
        try:
            found = _hashed(directory, name, progress)
        except FileNotFoundError:
            return sums, f"{name} is missing"
        if found != wanted:
            return sums, f"{name} has the sha256 {found}, {SUMS} says {wanted}"
    others = sorted(_files(directory) - sums.keys() - {SUMS})
    return sums, f"{others[0]} is not in {SUMS}" if others else ""


def checksums_of(directory: Path, progress: Progress | None = None) -> dict[str, str]:
    """Returns the sha256 of every file, but for a list of them; raises StorageError."""
    return {name: _hashed(directory, name, progress) for name in sorted(_files(directory) - {SUMS})}


def content_digest(directory: Path, progress: Progress | None = None) -> str:
    """Returns the sha256 of the SHA256SUMS that `write_checksums` would write for all files of a directory.

    Where there is a list, every file must agree with it: raises DataError where one does not, and otherwise
    as prove_checksums.
    """
    if not os.path.lexists(directory / SUMS):
        sums, difference = checksums_of(directory, progress), ""
    else:
        sums, difference = prove_checksums(directory, progress)
    if difference:
        raise DataError(difference)
    return hashlib.sha256(_listed(sums)).hexdigest()


def _listed(sums: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()


def _hashed(directory: Path, name: str, progress: Progress | None) -> str:
    with storage_errors("read", directory / name), file_beneath(directory, name) as descriptor:
        return hash_opened(descriptor, progress=progress).sha256


def _files(directory: Path) -> set[str]:
    with storage_errors("list", directory):
        os.listdir(directory)  # os.walk says nothing of a directory that is not there
        return {
            os.path.relpath(os.path.join(folder, name), directory)
            for folder, below, names in os.walk(directory)
            for name in (*names, *(one for one in below if os.path.islink(os.path.join(folder, one))))
        }
