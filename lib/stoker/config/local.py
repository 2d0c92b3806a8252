"""Detects network file systems, on which locks and fsync are unreliable."""

from __future__ import annotations

import os
from pathlib import Path

NETWORK_TYPES = frozenset({
    "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "fuse.ceph", "fuse.cephfs", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.mfs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
    "wekafs",
})  # fmt: skip


def network_type(path: Path, mountinfo: str) -> str | None:
    """Returns the network file system type of an absolute path, from a mountinfo text; None if local."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_unescaped(fields[4]))
        depth = len(point.parts)
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(point) and depth >= best:
            best, kind = depth, right.split(" ")[0]
    return kind if kind in NETWORK_TYPES else None


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def on_network(path: Path) -> str | None:
    """Returns the network file system type of a path, which need not exist yet; None if local."""
    mountinfo = Path("/proc/self/mountinfo")
    if not mountinfo.exists():
        return None
    return network_type(Path(os.path.realpath(path)), mountinfo.read_text(errors="surrogateescape"))
