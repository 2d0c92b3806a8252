"""Tells a checkpoint that is whole from half of one, by the ends of its files. Nothing is unpickled.

PyTorch writes zip archives, whose directory comes last; a safetensors file begins with the length of its
header, which says where its tensors end. HF's Trainer writes training_args.bin with the model and
trainer_state.json last; torch.distributed.checkpoint writes .metadata last.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from stoker.checkpoints.external.find import Outside
from stoker.store.files import opened
from stoker.store.record import parse_json

_ZIPPED = (".pt", ".pth", ".ckpt", ".bin")
_ZIP = b"PK\x03\x04"
_MOST_HEADER = 100 << 20  # bytes, as the safetensors library allows
_LAST = (("training_args.bin", "trainer_state.json"), (".distcp", ".metadata"))  # end of a name, written last


def why_not_whole(one: Outside) -> str:
    """Returns what a checkpoint lacks, "" where it lacks nothing that shows. Raises OSError."""
    if one.is_unfinished:
        return "a name with `incomplete` inside says that it is not finished"
    for name in one.files:
        pure = PurePosixPath(name)
        for end, last in _LAST:
            if pure.name.endswith(end) and str(pure.with_name(last)) not in one.files:
                return f"{last}, which is written last, is not there yet"
    return next((f"{name} {why}" for name in one.files if (why := _cut(one.path.parent / name))), "")


def shows_end(one: Outside) -> bool:
    """Returns whether a whole checkpoint is of a kind whose half would show. Raises OSError."""
    if one.kind == "file":
        return one.path.suffix == ".safetensors" or (one.path.suffix in _ZIPPED and _is_zip(one.path))
    names = {PurePosixPath(name).name for name in one.files}
    return any(last in names and any(name.endswith(end) for name in names) for end, last in _LAST)


def _is_zip(path: Path) -> bool:
    with opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
        return os.read(descriptor, len(_ZIP)) == _ZIP


def _cut(path: Path) -> str:
    """Returns how a file is cut off, "" where it is not, or of a kind that does not show it."""
    if path.suffix not in (*_ZIPPED, ".safetensors"):
        return ""
    with (
        opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as file,
    ):
        if path.suffix == ".safetensors":
            return _cut_tensors(file, os.fstat(descriptor).st_size)
        is_cut = file.read(len(_ZIP)) == _ZIP and not zipfile.is_zipfile(file)
        return "is cut off: the directory at the end of PyTorch's archive is missing" if is_cut else ""


def _cut_tensors(file: BinaryIO, size: int) -> str:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(_MOST_HEADER, size - 8):
        return "is cut off in its header"
    try:
        header = parse_json(file.read(length))
        ends = [one["data_offsets"][1] for key, one in header.items() if key != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "has a header that is no safetensors header"
    return f"has {size:,} of {end:,} bytes" if size != end else ""
