"""Where a pipeline's directories lie: overlaps of those that must be apart, and network file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline

SOURCE = "dataset.source.path"
# Locks and fsync are unreliable on these.
NETWORK_TYPES = frozenset({
    "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "fuse.ceph", "fuse.cephfs", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.mfs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
    "wekafs",
})  # fmt: skip


def places(pipeline: Pipeline) -> dict[str, Path]:
    """Returns the directories of a pipeline, by key; the source last."""
    found = {"state": pipeline.state, "hot": pipeline.hot, "warm": pipeline.warm}
    found |= {SOURCE: pipeline.dataset.source.path}
    return {key: path for key, path in found.items() if path is not None}


def existing(path: Path) -> Path:
    """Returns the path, or the nearest directory above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def overlaps(known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yields key and fault of each directory inside another; all but the source may be inside state."""
    for key, path in known.items():
        for other, outer in known.items():
            if path == outer and list(known).index(key) > list(known).index(other):
                yield key, f"is the same directory as {other}; give each its own"
            elif outer in path.parents and (other != "state" or key == SOURCE):
                why = {
                    key: ", which Stoker writes and cleans; move the source elsewhere",
                    other: ": Stoker would read what it wrote as new files; name a directory outside it",
                }.get(SOURCE, "; give each a directory of its own")
                yield key, f"lies inside {other} ({outer}){why}"


def nested_through_links(pipeline: Pipeline) -> list[tuple[tuple[str, ...], str]]:
    """Returns the overlaps of the resolved paths; reads links on the disks, so no daemon calls it."""
    real = {key: Path(os.path.realpath(path)) for key, path in places(pipeline).items()}
    return [(tuple(key.split(".")), text) for key, text in overlaps(real)] if SOURCE in real else []


def network_type(path: Path, mountinfo: str) -> str | None:
    """Returns the network file system type of an absolute path, from a mountinfo text; None if local."""
    best, kind = -1, ""
    for point, found in mounts(mountinfo):
        depth = len(point.parts)
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(point) and depth >= best:
            best, kind = depth, found
    return kind if kind in NETWORK_TYPES else None


def mounts(mountinfo: str) -> Iterator[tuple[Path, str]]:
    """Yields mount point and file system type of each mount in a mountinfo text."""
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if dash and len(fields) >= 5:
            # The kernel writes a space, tab, newline or backslash in a mount point as three octal digits.
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
            yield Path(point), right.split(" ")[0]


def on_network(path: Path) -> str | None:
    """Returns the network file system type of a path, which need not exist yet; None if local."""
    mountinfo = Path("/proc/self/mountinfo")
    if not mountinfo.exists():
        return None
    return network_type(Path(os.path.realpath(path)), mountinfo.read_text(errors="surrogateescape"))
