"""The control groups this process is in, and the small files in which the kernel tells of them.

What bounds a process is the least of the machine and of every cgroup it is in: its own and each above it,
version 1 and 2. What cannot be read (a container hides what is above it) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups_of(proc: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Version and directory of our own cgroups of a controller and of each above them, as far as mounted."""
    ours = {}
    for line in lines(proc / "self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            ours[2 if number == "0" else 1] = path
    for line in lines(proc / "self/mountinfo"):
        about_mount, _, about = line.partition(" - ")
        kind, _, options = about.partition(" ")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version not in ours or (version == 1 and controller not in options.split()[-1].split(",")):
            continue
        root, mount = about_mount.split()[3:5]
        inside = ours[version] if root == "/" else ours[version].removeprefix(root)
        top = Path(mount)
        group = top / inside.lstrip("/")
        while group != top.parent and group.is_relative_to(top):
            if group.is_dir():
                yield version, group
            group = group.parent


def number(file: Path) -> int | None:
    """None for one that cannot be read, or says `max`."""
    text = " ".join(lines(file))
    return int(text) if text.isdigit() else None


def fields(file: Path, mark: str = "") -> dict[str, int]:
    """The lines of a name and a number, the mark behind the name taken off."""
    found = {}
    for line in lines(file):
        name, *values = line.split()
        if values and values[0].isdigit():
            found[name.removesuffix(mark)] = int(values[0])
    return found


def lines(file: Path) -> list[str]:
    """The lines of a file; none where it is not this kernel's, or hidden from us."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
