"""Starts a command that ends with its parent: `python -m stoker.kit.exec PPID -- CMD...`.

Sets the death signal (SIGTERM), checks that PPID is still the parent, then becomes CMD. Exit codes before CMD
runs: 64 usage, 75 the parent is gone, 126 not executable, 127 not found.
"""

from __future__ import annotations

import os
import signal
import sys

from stoker.kit.process.prctl import set_death_signal

USAGE = "usage: python -m stoker.kit.exec PPID -- CMD [ARGUMENT...]"


def main(argv: list[str]) -> int:
    """Becomes the command; returns an exit code only when that fails."""
    if len(argv) < 3 or not argv[0].isdigit() or argv[1] != "--":
        print(USAGE, file=sys.stderr)
        return 64
    parent, command = int(argv[0]), argv[2:]
    set_death_signal(signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended between fork and prctl: no signal would ever come
        print(f"stoker.kit.exec: parent {parent} is gone; not starting {command[0]}", file=sys.stderr)
        return 75
    # Python ignores these two signals for itself, and an ignored signal stays ignored over exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        print(f"stoker.kit.exec: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
