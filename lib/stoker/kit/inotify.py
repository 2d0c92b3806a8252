"""inotify for a worker that watches many folders: the kernel's own calls, for a look walks the tree anyway.

An event means "look again", never what to find there. Only a worker uses this: watching a folder of a dead
mount hangs like any other access. The daemons watch their own directories through stoker.kit.watching.
"""

from __future__ import annotations

import ctypes
import os
import struct

# <linux/inotify.h>; names come, go and are closed after writing. Not IN_ATTRIB: staging by hard links would
# raise it for every file it links; not IN_MODIFY: a file being written is looked at often enough.
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x08, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_IGNORED, _ONLYDIR = 0x8000, 0x0100_0000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name


class Inotify:
    """One inotify instance; raises OSError where the kernel has none left to give (EMFILE)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._called(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """Readable when something changed."""
        return self._descriptor

    def add(self, folder: int) -> int:
        """Watch an open folder; the number of its watch, the same for the same folder; OSError: ENOSPC."""
        path = f"/proc/self/fd/{folder}".encode()
        return self._called(self._libc.inotify_add_watch(self._descriptor, path, _MASK | _ONLYDIR))

    def remove(self, watch: int) -> None:
        """Watch it no longer; a folder that is gone has taken its watch along."""
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def changes(self) -> list[str]:
        """The names to which something happened since the last call; never waits.

        An empty name: it happened to a watched folder itself, or the kernel lost track.
        """
        names: list[str] = []
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return names
            at = 0
            while at < len(data):
                _, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                if not mask & _IGNORED:  # the end of a watch, which has another cause that is told too
                    names.append(os.fsdecode(data[at - length : at].rstrip(b"\0")))

    def close(self) -> None:
        """End all watches."""
        os.close(self._descriptor)

    @staticmethod
    def _called(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
