"""Opens files and folders below a directory without following a symbolic link, in the path or at its end.

Each name is opened relative to the directory before it: a folder that becomes a link between check and use
leads to no other place. The root itself may be a link: the operator chose it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from stoker.store.errors import StorageError
from stoker.store.files import opened
from stoker.store.names import inside

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Linked(StorageError):
    """A name below the root is a symbolic link, or was replaced by one."""


class NotRegular(StorageError):
    """The file to read is a folder, a device or a pipe."""


@contextlib.contextmanager
def folder_beneath(root: Path, relative: str) -> Iterator[int]:
    """Opens the folder `relative` below root (root itself for "") for the length of a block.

    Raises Linked where a name in the path is a link, PathEscapes where the path leaves root, else OSError.
    """
    parts = inside(root, relative).relative_to(root).parts if relative else ()
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(opened(root, os.O_RDONLY | os.O_DIRECTORY))
        for number, part in enumerate(parts):
            try:
                below = os.open(part, _FOLDER, dir_fd=at)
            except OSError as error:
                _insist_on_no_link(part, at, root / Path(*parts[: number + 1]), error)
                raise
            stack.callback(os.close, below)
            at = below
        yield at


@contextlib.contextmanager
def file_beneath(root: Path, relative: str) -> Iterator[int]:
    """Opens a regular file below root for reading. Raises as folder_beneath, and NotRegular."""
    pure = PurePosixPath(inside(root, relative).relative_to(root))
    folder = "" if pure.parent == PurePosixPath() else str(pure.parent)
    with folder_beneath(root, folder) as at:
        try:
            # Without O_NONBLOCK the open of a pipe would block without limit.
            descriptor = os.open(
                pure.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at
            )
        except OSError as error:
            _insist_on_no_link(pure.name, at, root / pure, error)
            raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegular(f"{root / pure} is not a regular file; move it out of the folder")
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


def _insist_on_no_link(name: str, at: int, path: Path, error: OSError) -> None:
    try:
        linked = stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:  # then the caller raises the first error
        return
    if linked:
        raise Linked(
            f"{path} is a symbolic link, and nothing is read through one: put the file there, or name the "
            "folder it leads to",
            error.errno,
        ) from error
