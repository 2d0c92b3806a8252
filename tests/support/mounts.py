"""Small file systems for tests: tmpfs of a chosen size, in a mount namespace that dies with its processes.

Whoever mounts runs apart (`apart(command)`), so that nothing stays mounted whatever becomes of the test.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

_APART = "STOKER_TEST_APART"
# As root a namespace of mounts is enough; anybody else becomes root in a user namespace of their own.
_WAYS = (
    ("unshare", "--mount", "--propagation", "private"),
    ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"),
)


def is_apart() -> bool:
    """Whether this process runs in mounts of its own already."""
    return _APART in os.environ


@functools.cache
def _way() -> tuple[str, ...] | None:
    if shutil.which("unshare") is None:
        return None
    trial = ("sh", "-c", "mount -t tmpfs -o size=1m none /mnt")
    return next(
        (
            way
            for way in _WAYS
            if subprocess.run([*way, *trial], check=False, capture_output=True, timeout=20).returncode == 0
        ),
        None,
    )


def apart(command: list[str]) -> list[str] | None:
    """The command in mounts of its own; None where this machine lets nobody mount."""
    way = _way()
    return None if way is None else [*way, "env", f"{_APART}=1", *command]


WHY_NOT = "no mount namespace with a tmpfs here: be root, or allow user namespaces (apt install util-linux)"


def mount_small(place: Path, size: int) -> None:
    """Mount a tmpfs of `size` bytes; only apart, where it vanishes with the last process."""
    assert is_apart(), "a test may only mount in a namespace of its own"
    place.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size},mode=0750", "none", str(place))


def resize_small(place: Path, size: int) -> None:
    """Give a mounted tmpfs another size."""
    _mount("-o", f"remount,size={size}", str(place))


def remount(place: Path, *options: str) -> None:
    """Change a mount: `ro` or `rw`."""
    _mount("-o", ",".join(("remount", *options)), str(place))


def unmount(place: Path) -> None:
    """Unmount, whoever still uses it."""
    subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)


def unmount_below(place: Path) -> None:
    """Unmount every disk that was mounted somewhere below."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in map(Path, points):
        if place in point.parents:
            unmount(point)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, timeout=20)


def free_bytes(place: Path) -> int:
    """What an ordinary user may still write there."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
