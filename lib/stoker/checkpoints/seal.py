"""Seals a checkpoint: it is written under a temporary name and gets its own by one rename when durable.

Order on disk: the files, checkpoint.json, SHA256SUMS, the directory, the rename, the parent directory. A
crash leaves a whole checkpoint or none, and a temporary directory that the owner of trainer.lock sweeps.

Tensors are written in the safetensors format without its library: no heavy import, and every byte is hashed
on its way. 8 bytes little-endian: length of the header; the header, JSON, padded with spaces to a multiple of
8; the tensors' bytes end to end (https://github.com/huggingface/safetensors, its README has the format).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from stoker.checkpoints.format import (
    BODY,
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
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import make_dir, opened, publish_dir, remove_tree, write_all

FILE_BYTES = 1 << 30  # a limit on files, so that they can be hashed in parallel
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

    def add_tensors(self, stem: str, tensors: Iterable[tuple[str, str, Sequence[int], memoryview]]) -> None:
        """Writes tensors as `<stem>-00001.safetensors` and following files, at most FILE_BYTES each.

        A tensor is (name, dtype such as F32, shape, contiguous bytes). A larger tensor has its own file.
        """
        named = [Tensor(name, dtype, tuple(shape), data) for name, dtype, shape, data in tensors]
        for number, group in enumerate(split(named), start=1):
            self.add(f"{stem}-{number:05d}.safetensors", file_chunks(group, {"format": "pt"}))

    def seal(self, body: Mapping[str, Any]) -> Path:
        """Writes checkpoint.json and SHA256SUMS and renames the checkpoint to its final name.

        Returns its path.

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
        path = self._temporary / name
        digest, size = hashlib.sha256(), 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with storage_errors("write", path), opened(path, flags) as descriptor:
            for chunk in chunks:
                digest.update(chunk)
                write_all(descriptor, chunk)
                size += memoryview(chunk).nbytes
            os.fsync(descriptor)
        return FileEntry(size, digest.hexdigest())


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
    """A named tensor: dtype as safetensors spells it (F32, BF16, I64, ...), and its contiguous bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def file_chunks(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of one file; tensors with wide items come first, so that each tensor is aligned."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.data.nbytes // max(1, math.prod(tensor.shape)))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
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
    yield len(text).to_bytes(8, "little") + text
    for tensor in ordered:
        if tensor.data.nbytes:
            yield tensor.data.cast("B")


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
