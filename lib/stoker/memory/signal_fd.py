"""Signals as a readable descriptor that also says who sent them: signalfd(2), which Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from typing import NamedTuple

_SIGINFO = struct.Struct("=Iii116x")  # signo, errno and code of struct signalfd_siginfo, which has 128 bytes
_SIGSET_BYTES = 128


class Arrived(NamedTuple):
    """A signal; `is_terminal`: the kernel sent it, as for Ctrl-C, to every process in the foreground."""

    signum: int
    is_terminal: bool


class SignalFd:
    """Blocks these signals in the calling thread and receives them; a child must start with `mask_before`.

    A signal that this process ignores stays ignored.
    """

    def __init__(self, *signums: int) -> None:
        heard = [signum for signum in signums if signal.getsignal(signum) is not signal.SIG_IGN]
        libc = ctypes.CDLL(None, use_errno=True)
        mask = ctypes.create_string_buffer(_SIGSET_BYTES)
        libc.sigemptyset(mask)
        for signum in heard:
            libc.sigaddset(mask, signum)
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        self._fd: int = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"signalfd: {os.strerror(code)}")

    def fileno(self) -> int:
        """Returns a descriptor that is readable whenever read() returns something."""
        return self._fd

    def read(self) -> list[Arrived]:
        """Returns the signals since the last call; repeats of a signal may be one."""
        arrived = []
        with contextlib.suppress(BlockingIOError):
            while True:
                signum, _, code = _SIGINFO.unpack(os.read(self._fd, _SIGINFO.size))
                arrived.append(Arrived(signum, code > 0))
        return arrived
