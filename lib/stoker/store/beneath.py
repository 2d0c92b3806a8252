"""Opening what lies below a directory without ever leaving it: no link is followed on the way or at its end.

Each name is opened relative to the directory before it, so that a folder which becomes a link between a look
and the use of what was seen there leads nowhere. The root itself is the operator's word: it may be a link.
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
    """What was to be read is a folder, a device or a pipe."""


@contextlib.contextmanager
def folder_beneath(root: Path, relative: str) -> Iterator[int]:
    """The folder `relative` below root (root itself for ""), opened for the length of a block.

    Raises Linked where a name on the way is a link, PathEscapes for one that climbs out, else OSError.
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
    """A regular file below root, opened to be read. Raises as folder_beneath, and NotRegular."""
    pure = PurePosixPath(inside(root, relative).relative_to(root))
    folder = "" if pure.parent == PurePosixPath() else str(pure.parent)
    with folder_beneath(root, folder) as at:
        try:
            # Without O_NONBLOCK a pipe of that name would be waited on for ever.
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
    """The path of `file` relative to root, by the words alone; None where it does not lie below."""
    try:
        relative = file.relative_to(root)
    except ValueError:
        return None
    return None if ".." in relative.parts or relative == Path() else str(relative)


def _insist_on_no_link(name: str, at: int, path: Path, error: OSError) -> None:
    try:
        linked = stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:  # then the first error is the one to tell
        return
    if linked:
        raise Linked(
            f"{path} is a symbolic link, and nothing is read through one: put the file there, or name the "
            "folder it leads to",
            error.errno,
        ) from error
