"""The two `prctl(2)` switches that prevent orphans; small, because each exec launcher imports this module."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {argument}): {os.strerror(code)}")


def set_death_signal(signum: signal.Signals) -> None:
    """Asks the kernel for this signal when the thread that created this process ends.

    The setting survives exec, not fork. The parent may have ended before the call: compare os.getppid() with
    the expected parent afterwards.
    """
    _prctl(PR_SET_PDEATHSIG, signum)


def set_child_subreaper() -> None:
    """Makes this process the parent of every descendant whose own parent ends; the setting survives exec."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
