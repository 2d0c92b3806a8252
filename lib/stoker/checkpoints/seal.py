"""Seals a checkpoint: it is written under a temporary name and gets its own by one rename when durable.

Order on disk: the files, checkpoint.json, SHA256SUMS, the directory, the rename, the parent directory. A
crash leaves a whole checkpoint or none, and a temporary directory that the owner of trainer.lock sweeps.

Bytes go past the page cache where their memory is aligned, as a sealer's is, and are hashed meanwhile.

Tensors are written in the safetensors format without its library, which is a heavy import. 8 bytes
little-endian: length of the header; the header, JSON, padded with spaces to a multiple of 8; the tensors'
bytes end to end (https://github.com/huggingface/safetensors, its README has the format).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from stoker.checkpoints.format import (
    BODY,
    FILES,
    SUMS,
    TEMPORARY,
    CheckpointBody,
    FileEntry,
    checkpoint_name,
    read_body,
    write_body,
    write_sums,
)
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import move_checkpoint
from stoker.store.direct import (
    CHUNK,
    DirectReader,
    DirectWriter,
    Progress,
    aligned_buffer,
    hash_opened,
    insist_on_room,
)
from stoker.store.errors import FULL, DataError, Transient, storage_errors
from stoker.store.files import fsync_tree, inside, make_dir, opened, publish_dir, remove_tree

FILE_BYTES = 1 << 30  # a limit on files, so that they can be hashed in parallel
SPARE_BYTES = 64 << 20  # that a copy leaves free, for the records of the daemons
_FICLONE = 0x40049409  # <linux/fs.h>
_AHEAD = 8  # pieces: writing waits for no hash that is late by a moment, at 4 MiB a piece
_WORTH_A_THREAD = 256 << 10  # bytes that take longer to hash than a thread to wake
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class CheckpointWriter:
    """Writes one checkpoint; as a context manager it removes its temporary directory on an error.

    Every file's sha256 is that of the bytes handed to write(2), so the first proof finds a disk that stored
    other bytes. A StorageError (disk full, I/O) leaves no files behind.
    """

    def __init__(self, checkpoints_dir: Path, step: int, launch: str) -> None:
        self.step = step
        self.target = checkpoints_dir / checkpoint_name(step)
        self._temporary = checkpoints_dir / f"{TEMPORARY}{launch}-{step:09d}"
        self._files: dict[str, FileEntry] = {}
        remove_tree(self._temporary)  # of a failed attempt of this launch
        make_dir(self._temporary)

    def add(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileEntry:
        """Writes one file durably; `name` is plain, without directories."""
        if name in self._files or name in (BODY, SUMS) or not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a file of a checkpoint, or is one already")
        self._files[name] = self._write(name, chunks)
        return self._files[name]

    def add_copy(self, name: str, source: int, size: int, progress: Progress) -> None:
        """Writes a copy of the first `size` bytes of an open file as FILES/<name>; `name` may be a path."""
        name = f"{FILES}/{name}"
        path = inside(self._temporary, name)
        make_dir(path.parent)
        self._files[name] = copy_hashed(source, path, size, progress)

    @property
    def listed(self) -> dict[str, dict[str, Any]]:
        """The files as checkpoint.json lists them."""
        return {name: {"size": entry.size, "sha256": entry.sha256} for name, entry in self._files.items()}

    def seal(self, body: Mapping[str, Any], *, replaces: tuple[Path, Path] | None = None) -> Path:
        """Writes checkpoint.json and SHA256SUMS and renames the checkpoint to its final name.

        Returns its path. `replaces` is a checkpoint of the same step and where it is moved, just before.

        If a proven equal checkpoint has the name, the new checkpoint is dropped; any other checkpoint raises
        DataError.
        """
        if body.get("step") != self.step:
            raise ValueError(
                f"the body speaks of step {body.get('step')}, the checkpoint is step {self.step}"
            )
        data = write_body(body, self._files)
        sums = {name: entry.sha256 for name, entry in self._files.items()}
        sums[BODY] = self._write(BODY, [data]).sha256
        self._write(SUMS, [write_sums(sums)])
        if replaces is not None and replaces[0].exists():
            fsync_tree(self._temporary)
            make_dir(replaces[1].parent)
            if not move_checkpoint(*replaces):  # after a crash from here on its path is sealed again
                raise Transient(f"{replaces[0]} is being read; it is replaced later")
        try:
            publish_dir(self._temporary, self.target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            _require_equal(self.target, read_body(data))
            remove_tree(self._temporary)
        return self.target

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # the next owner sweeps; the first error says more
                remove_tree(self._temporary)

    def _write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileEntry:
        return write_hashed(self._temporary / name, chunks, ahead=_AHEAD)


def write_hashed(path: Path, chunks: Iterable[bytes | memoryview], *, ahead: int = 0) -> FileEntry:
    """Writes a new file durably; returns the size and hash of the bytes handed to write(2).

    Up to `ahead` pieces are written before an earlier one is hashed: their memory must not change meanwhile.
    """
    digest, flags = hashlib.sha256(), os.O_WRONLY | os.O_CREAT | os.O_EXCL
    hashing: deque[Future[None]] = deque()
    with (
        storage_errors("write", path),
        opened(path, flags) as descriptor,
        ThreadPoolExecutor(max_workers=1) as hasher,
    ):
        writer = DirectWriter(descriptor)
        for piece in _pieces(chunks):
            if piece.nbytes < _WORTH_A_THREAD and not hashing:
                digest.update(piece)
                writer.append(piece)
                continue
            hashing.append(hasher.submit(digest.update, piece))
            writer.append(piece)
            while len(hashing) > ahead:
                hashing.popleft().result()
        writer.commit()
        for hashed in hashing:
            hashed.result()
    return FileEntry(writer.done, digest.hexdigest())


def copy_hashed(source: int, path: Path, size: int, progress: Progress) -> FileEntry:
    """Writes the first `size` bytes of an open file durably to a new file; returns its size and hash.

    The two share their blocks where the file system can do that; the hash is then of what the disk holds.
    Raises StorageError, also where SPARE_BYTES would not stay free.
    """
    if (cloned := _clone(source, path, size, progress)) is not None:
        return cloned
    insist_on_room(path.parent, size + SPARE_BYTES, 0)
    # Through the page cache, where what was just written still is.
    reader = DirectReader(source, past_cache=False)

    def told(chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            yield chunk
            progress(reader.done)

    with aligned_buffer(CHUNK) as buffer:
        return write_hashed(path, told(reader.chunks(buffer, size)))


def _clone(source: int, path: Path, size: int, progress: Progress) -> FileEntry | None:
    """Makes `path` share an open file's blocks; returns None where the file systems cannot do that."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    with storage_errors("write", path), opened(path, flags) as descriptor:
        try:
            fcntl.ioctl(descriptor, _FICLONE, source)
        except OSError as error:
            path.unlink()
            if error.errno in FULL:
                raise
            return None
        os.ftruncate(descriptor, size)  # it may have grown since it was looked at
        os.fsync(descriptor)
        found = hash_opened(descriptor, progress=progress)
    return FileEntry(found.size, found.sha256)


def _pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yields the bytes of all chunks in order, in pieces that are written at once."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, view.nbytes, CHUNK):
            yield view[start : start + CHUNK]


def _require_equal(target: Path, ours: CheckpointBody) -> None:
    """Raises DataError unless the checkpoint that has our name is proven and has the same body."""
    proof = prove_checkpoint(target)
    if proof.body == ours:
        return
    found = "another checkpoint" if proof.verdict == "proven" else f"{proof.verdict}: {proof.reason}"
    raise DataError(
        f"{target} is there already and is {found}; two histories of one run must not mix. Move it away "
        "(quarantine or roll back) and start again"
    )


class Tensor(NamedTuple):
    """A named tensor: dtype as safetensors spells it (F32, BF16, I64, ...), and its data.

    `data` is whatever holds contiguous bytes and says how many as `nbytes`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


def tensor_files(stem: str, tensors: Iterable[Tensor]) -> Iterator[tuple[str, list[Any]]]:
    """Yields `<stem>-00001.safetensors` and following files, at most FILE_BYTES each, with their parts.

    The first part is the header, in bytes; the others are the tensors' data. A larger tensor is its own file.
    """
    for number, group in enumerate(split(list(tensors)), start=1):
        yield f"{stem}-{number:05d}.safetensors", file_parts(group, {"format": "pt"})


def file_parts(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> list[Any]:
    """Returns the parts of one file; tensors with wide items come first, so that each tensor is aligned."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.data.nbytes // max(1, math.prod(tensor.shape)))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in ordered:
        size = tensor.data.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = [tensor.data for tensor in ordered if tensor.data.nbytes]
    return [len(text).to_bytes(8, "little") + text, *data]


def split(tensors: Sequence[Tensor], limit: int = FILE_BYTES) -> list[list[Tensor]]:
    """Returns the tensors in order, in groups of at most `limit` bytes; a larger tensor is its own group."""
    groups: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.data.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.data.nbytes
    return groups
