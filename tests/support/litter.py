"""What members of the group may leave lying in a daemon's folder of requests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def litter_requests(directory: Path) -> None:
    """Names that are no pids and no text, and bodies with right sums that no writer of ours makes."""
    for name in (".tmp-x-99999999999999999999-ab", ".tmp-x-\N{SUPERSCRIPT TWO}-ab"):
        (directory / name).write_bytes(b"")
    (directory / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    (directory / ("\N{SNOWMAN}" * 80 + ".json")).write_bytes(b"{}")
    for name, value in (
        ("escaped", b'"\\ud800"'),
        ("raw", b'"' + "\ud800".encode("utf-8", "surrogatepass") + b'"'),
        ("endless", b"1e999"),
    ):
        before = b'{"args":{"path":' + value + b'},"by":"","id":"' + name.encode() + b'","if":null'
        after = b',"v":1,"verb":"dispute"}'
        digest = hashlib.sha256(before + after).hexdigest()[:16].encode()
        (directory / f"{name}.json").write_bytes(before + b',"sum":"' + digest + b'"' + after + b"\n")
