"""Finds the control groups of this process, and reads the kernel's small files about them.

The limit of a process is the least of the machine's and of all its cgroups': its own and each parent, version
1 and 2. Unreadable groups are left out: a container hides the parents of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups_of(proc: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yields version and directory of this process's cgroups of a controller, with all mounted parents."""
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
    """Returns the number in a file; None for an unreadable file, or one that holds `max`."""
    text = " ".join(lines(file))
    return int(text) if text.isdigit() else None


def fields(file: Path, mark: str = "") -> dict[str, int]:
    """Returns the numbers of a file by name, from lines "name number"; removes `mark` after the name."""
    found = {}
    for line in lines(file):
        name, *values = line.split()
        if values and values[0].isdigit():
            found[name.removesuffix(mark)] = int(values[0])
    return found


def lines(file: Path) -> list[str]:
    """Returns the lines of a file; none where this kernel has no such file, or a container hides it."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
