"""Messages between the fetch worker and its daemon: the task, and the worker's reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.source.remote_listing import access_to

COMMIT_S = 2.0
BACKOFF_S = (1.0, 60.0)


def fetch_task(pipeline: Pipeline, *, expected: bool) -> dict[str, Any]:
    """Returns the worker's task; `expected`: files landed before, so the landing's directory must exist."""
    download, quarantine = pipeline.download, pipeline.quarantine
    third_s = min(60.0, download.stall / 3)
    return {
        "root": str(pipeline.source_root),
        "dataset": pipeline.dataset.name,
        "expected": expected,
        **{name: getattr(download, name) for name in ("files_at_once", "bandwidth", "min_rate", "attempts")},
        "window_s": third_s,
        "connect_s": min(20.0, download.stall),
        "read_s": third_s,
        "head_s": min(120.0, download.stall / 2),
        "commit_s": COMMIT_S,
        "backoff": BACKOFF_S,
        "floor": pipeline.stage.free_floor,
        "keep_files": quarantine.keep_files,
        "keep_bytes": quarantine.keep_bytes,
        **access_to(pipeline.dataset.source),
        "owner": pipeline.owner,
    }


@dataclass(frozen=True)
class Said:
    """One message; each kind has the fields in the worker's module docstring, with `cause` for its class."""

    kind: str
    path: str = ""
    bytes: int = 0
    received: int = 0
    offset: int = 0
    dropped: int = 0
    # retry, failed, anew, not_removed
    cause: str = ""
    reason: str = ""
    status: int | None = None
    wait_s: float = 0.0
    # done
    how: str = ""
    size: int = 0
    sha256: str = ""
    cached: bool = False
    unproven: bool = False
    fetched: int = 0
    # mismatch
    expected: str = ""
    found: str = ""
    count: int = 0
    evidence: str = ""
    landed: bool = False
    # ready
    foreign: tuple[str, ...] = ()
    device: int = 0


def parse(message: Mapping[str, Any]) -> Said:
    """Returns the message of a worker's line; raises TypeError for an unknown field."""
    fields = {"cause" if name == "class" else name: value for name, value in message.items()}
    return Said(**{**fields, "foreign": tuple(message.get("foreign", ()))})
