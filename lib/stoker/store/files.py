"""Changes the disk so that a crash leaves either the old or the new state; reads below a root without links.

All functions use plain `os` calls on paths and descriptors, which tests/crash records. A failure raises
StorageError; FileNotFoundError and FileExistsError pass through.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.store.errors import DataError, StorageError, storage_errors

FILE_MODE = 0o640
DIR_MODE = 0o750
TEMPORARY = ".tmp-"
# A pid has at most 7 digits: PID_MAX_LIMIT.
_TEMPORARY = re.compile(r"\.tmp-.+-([0-9]{1,7})-[^-]+", re.DOTALL)


class PathEscapes(DataError):
    """A relative path leads out of its directory."""


class NotPlain(StorageError):
    """A name below the root is a symbolic link, or what is to be read is no folder or regular file."""


def canonical_json(obj: Any) -> bytes:
    """Returns canonical JSON: sorted keys, no spaces, UTF-8; raises ValueError on NaN or infinity."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def write_atomic(path: Path, data: bytes, *, durable: bool = True, mode: int = FILE_MODE) -> None:
    """Writes data to path, whole or not at all; durable=False skips fsync: a power cut may lose the file."""
    temporary = temporary_beside(path)
    with storage_errors("write", path):
        try:
            _write_new(temporary, data, durable, mode)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error matters; sweep_temporaries removes the file
                os.unlink(temporary)
            raise
    if durable:
        fsync_dir(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Appends a line to a file, after the end of a line that a crash tore; a power cut may lose the line."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    with storage_errors("append to", path), opened(path, flags) as descriptor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.fchmod(descriptor, FILE_MODE)
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        write_all(descriptor, b"\n" * is_torn + line + b"\n")


def temporary_beside(path: Path) -> Path:
    """Returns a name for a temporary file in path's directory: `.tmp-<name>-<pid>-<random>`."""
    return path.parent / f"{TEMPORARY}{path.name[:150]}-{os.getpid()}-{secrets.token_hex(4)}"


def sweep_temporaries(directory: Path) -> int:
    """Unlinks the temporaries that dead processes left in a directory; returns how many."""
    swept = 0
    with storage_errors("sweep", directory):
        with os.scandir(directory) as entries:
            temporaries = [entry for entry in entries if entry.name.startswith(TEMPORARY)]
        for entry in temporaries:
            with contextlib.suppress(FileNotFoundError):  # another sweeper or the writer removed it
                if _is_leftover(entry):
                    os.unlink(entry.path)
                    swept += 1
    return swept


def make_dir(path: Path, mode: int = DIR_MODE) -> None:
    """Makes a directory and its missing parents, durably; an existing directory keeps its mode."""
    with storage_errors("make directory", path):
        if not path.parent.exists():
            make_dir(path.parent)
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not path.is_dir():
                raise
            # The maker may have died before the fsync. An unreadable parent belongs to another user.
            with contextlib.suppress(PermissionError):
                _fsync_path(path.parent)
            return
        os.chmod(path, mode)  # the umask removed bits, and mkdir ignores the set-group-id bit
        _fsync_path(path.parent)


def fsync_dir(path: Path) -> None:
    """Makes a directory's entries durable."""
    with storage_errors("fsync directory", path):
        _fsync_path(path)


def fsync_tree(directory: Path | str) -> None:
    """Makes a directory and all below it durable; raises OSError."""
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            fsync_tree(entry.path)
        elif entry.is_file(follow_symlinks=False):
            _fsync_path(entry.path)
    _fsync_path(directory)


def publish_dir(temporary: Path, target: Path) -> None:
    """Makes a directory's whole tree durable and gives it its final name by one rename.

    Raises FileExistsError, with the temporary untouched, when the target exists.
    """
    with storage_errors("publish", target):
        fsync_tree(temporary)
    move_durably(temporary, target)


def move_durably(source: Path, target: Path) -> None:
    """Renames a file or directory durably; raises FileExistsError when the target exists.

    The content must be durable before: only the rename becomes durable here.
    """
    with storage_errors(f"move {source} to", target):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(source, target)
        _fsync_path(target.parent)
        if source.parent != target.parent:
            _fsync_path(source.parent)


def point_link(link: Path, target: Path) -> None:
    """Has a symbolic link, new or there already, lead to the target, by one durable rename."""
    temporary = link.with_name(f"{TEMPORARY}{link.name}")
    unlink_durably(temporary)  # of a killed command
    with storage_errors("turn", link):
        is_beside = target.absolute().parent == link.absolute().parent
        os.symlink(target.name if is_beside else target.absolute(), temporary)
        os.rename(temporary, link)
        _fsync_path(link.parent)


def unlink_durably(path: Path) -> None:
    """Unlinks a file durably; a missing file is no error, because a restart repeats the call."""
    with storage_errors("unlink", path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        _fsync_path(path.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory tree durably; a missing directory is no error."""
    with storage_errors("remove", path):
        with contextlib.suppress(FileNotFoundError):
            _remove_below(path)
            os.rmdir(path)
        _fsync_path(path.parent)


def remove_durably(path: Path) -> None:
    """Removes a file, a link or a directory tree durably; a missing path is no error."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        unlink_durably(path)


def tree_bytes(path: Path) -> int:
    """Returns the size of a file, or of all files below a directory."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    size, folders = 0, [os.fspath(path)]
    for folder in folders:  # no recursion: there may be a thousand within each other
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                size += entry.stat(follow_symlinks=False).st_size
    return size


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all bytes: write(2) may write fewer than it is given."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = FILE_MODE) -> Iterator[int]:
    """Opens a descriptor (close-on-exec) for the length of a block."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def inside(root: Path, relative: str) -> Path:
    """Joins an untrusted relative path to root; raises PathEscapes if it is absolute, empty or has "..".

    Does not look at the disk: the caller must care for symbolic links below root.
    """
    pure = PurePosixPath(relative)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in relative:
        raise PathEscapes(f"{relative!r} is no path inside {root}; correct whatever names it")
    return root / pure


@contextlib.contextmanager
def folder_beneath(root: Path, relative: str) -> Iterator[int]:
    """Opens the folder `relative` below root (root itself for "") for the length of a block.

    Raises NotPlain where a name in the path is a link, PathEscapes where the path leaves root, else OSError.
    """
    parts = inside(root, relative).relative_to(root).parts if relative else ()
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(opened(root, os.O_RDONLY | os.O_DIRECTORY))
        for number, part in enumerate(parts):
            at = _open_below(at, part, os.O_DIRECTORY, root / Path(*parts[: number + 1]))
            stack.callback(os.close, at)
        yield at


@contextlib.contextmanager
def file_beneath(root: Path, relative: str) -> Iterator[int]:
    """Opens a regular file below root for reading. Raises as folder_beneath."""
    pure = PurePosixPath(inside(root, relative).relative_to(root))
    folder = "" if pure.parent == PurePosixPath() else str(pure.parent)
    with folder_beneath(root, folder) as at:
        # Without O_NONBLOCK the open of a pipe would block without limit.
        descriptor = _open_below(at, pure.name, os.O_NONBLOCK, root / pure)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotPlain(f"{root / pure} is not a regular file; move it out of the folder")
        yield descriptor
    finally:
        os.close(descriptor)


def below(root: Path, file: Path) -> str | None:
    """Returns the path of `file` relative to root, without a look at the disk; None where it is not below."""
    try:
        relative = file.relative_to(root)
    except ValueError:
        return None
    return None if ".." in relative.parts or relative == Path() else str(relative)


def _write_new(path: Path, data: bytes, durable: bool, mode: int) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        os.fchmod(descriptor, mode)  # without the umask: members of the group read the state
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)


def _fsync_path(path: Path | str) -> None:
    with opened(Path(path), os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def _remove_below(directory: Path | str) -> None:
    folders = [os.fspath(directory)]  # each after the one that holds it
    for folder in folders:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                os.unlink(entry.path)
    for folder in reversed(folders[1:]):
        os.rmdir(folder)


def _is_leftover(entry: os.DirEntry[str]) -> bool:
    found = _TEMPORARY.fullmatch(entry.name)
    if found is None:
        return False
    pid = int(found[1])
    if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return pid == os.getpid()


def _open_below(folder: int, name: str, flags: int, path: Path) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):  # the second one where a folder is asked for
            raise
        raise NotPlain(
            f"{path} is a symbolic link or no folder, and nothing is read through a link: put the file "
            "there, or name the folder it leads to",
            error.errno,
        ) from error


def drop_first(places: Sequence[Path], *, keep: int, keep_bytes: int) -> list[Path]:
    """Removes files and directories from the front until both limits hold; returns the removed ones.

    The last stays whatever its size, unless `keep` is 0.
    """
    left, sizes = list(places), {place: tree_bytes(place) for place in places}
    while len(left) > keep or (len(left) > 1 and sum(sizes[place] for place in left) > keep_bytes):
        remove_durably(left.pop(0))
    return [place for place in places if place not in left]
