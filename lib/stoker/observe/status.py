"""Reads the status of the daemons: their snapshots, and from their locks whether they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.kit.lock import Holder, read_contents, read_holder
from stoker.store.errors import StorageError
from stoker.store.layout import DAEMONS, RuntimeLayout, StateLayout
from stoker.store.record import parse_json

SNAPSHOT_LIMIT = 4 << 20  # bytes


def read_status(layout: StateLayout) -> dict[str, dict[str, Any]]:
    """Returns the status of each daemon of a pipeline, for any process that can read the state directory.

    Keys: `running`; `state` ("running", "stopped", "never started"); `since`; `pid` and `metrics`, None
    unless running; `body`, the last snapshot, also of a stopped daemon, {} where none exists; `silent_s`,
    the snapshot's age in seconds.
    """
    return {daemon: _read(layout, daemon) for daemon in DAEMONS}


def _read(layout: StateLayout, daemon: str) -> dict[str, Any]:
    path = layout.lock(daemon)
    try:
        holder = read_holder(path)
    except PermissionError as error:
        advice = "become a member of the group that owns it"
        raise StorageError(f"cannot read {path}; {advice}", error.errno) from error
    running = holder is not None and holder.purpose == daemon
    last = holder or read_contents(path)
    body, silent_s = _read_runtime(last, lambda runtime: runtime.status(daemon)), 0.0
    with contextlib.suppress(KeyError, TypeError, ValueError):  # no snapshot, or another version's
        silent_s = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(body["time"])).total_seconds())
    return {
        "running": running,
        "state": "running" if running else "stopped" if last.since else "never started",
        "pid": last.pid if running else None,
        "since": last.since or None,
        "metrics": last.extra.get("metrics") if running else None,
        "body": body,
        "silent_s": silent_s,
    }


def read_configuration(layout: StateLayout, daemon: str) -> dict[str, Any] | None:
    """Returns the configuration of a running daemon (`stoker.config.show.recorded`); None: not known."""
    if (holder := read_holder(layout.lock(daemon))) is None:
        return None
    body = _read_runtime(holder, lambda runtime: runtime.configuration(daemon))
    config: dict[str, Any] | None = body.get("config") if body.get("pid") == holder.pid else None
    return config


def _read_runtime(holder: Holder, place: Callable[[RuntimeLayout], Path]) -> dict[str, Any]:
    root = holder.extra.get("runtime")
    if not isinstance(root, str) or not root:
        return {}
    try:
        with place(RuntimeLayout.at(Path(root))).open("rb") as stream:
            body = parse_json(stream.read(SNAPSHOT_LIMIT))
    except (OSError, ValueError):  # a reboot deleted it, or another user's private directory hides it
        return {}
    return body if isinstance(body, dict) else {}
