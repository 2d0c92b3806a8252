"""Requests to the daemon that owns a file to change it: one record per request, named by its id.

The daemon acts, writes `done/<id>.json`, and only then unlinks the request: a daemon does not act again on an
id in done. A request states a goal and the condition for it, so acting twice would do no harm.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.store.errors import StorageError, UnknownFormat, storage_errors
from stoker.store.files import unlink_durably
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, new_id, read_record, set_aside, utc_now, write_record

MOST_BYTES = 64 * 1024
KEPT_DONE = 1000
NOT_OURS = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Request:
    """A verb with arguments, to be carried out only if the condition holds."""

    id: str
    verb: str
    args: Mapping[str, Any]
    condition: Mapping[str, Any] | None
    by: str


def file_request(
    layout: StateLayout,
    daemon: str,
    verb: str,
    args: Mapping[str, Any],
    condition: Mapping[str, Any] | None = None,
) -> str:
    """Files a request to a daemon, durably; returns its id, which names the outcome in done/."""
    request_id = new_id()
    body = {"v": 1, "id": request_id, "verb": verb, "args": dict(args), "by": f"uid {os.getuid()}"}
    body["if"] = None if condition is None else dict(condition)
    write_record(layout.requests(daemon) / f"{request_id}.json", body)
    return request_id


def pending_requests(
    layout: StateLayout, daemon: str, stuck: MutableMapping[str, StorageError] | None = None
) -> list[Request]:
    """Returns the requests to act on, oldest first; unlinks answered requests and sets damaged ones aside.

    Notes in `stuck`, by name, an entry that can be neither read nor moved, and continues with the next. An
    entry that only another user may move is not tried again while it exists.
    """
    stuck = {} if stuck is None else stuck
    directory = layout.requests(daemon)
    names = _names(directory)
    for name in stuck.keys() - set(names):
        del stuck[name]
    requests = []
    for name in names:
        if name in stuck and stuck[name].errno in NOT_OURS:
            continue
        try:
            request = _take(layout, directory / name)
        except StorageError as error:
            stuck[name] = error
            continue
        stuck.pop(name, None)
        if request is not None:
            requests.append(request)
    return requests


def waiting_requests(layout: StateLayout, daemon: str) -> tuple[int, float | None]:
    """Returns the number of unanswered requests to a daemon, and when the oldest was filed (Unix time)."""
    filed_at = []
    with contextlib.suppress(OSError), os.scandir(layout.requests(daemon)) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # answered meanwhile
                    filed_at.append(entry.stat(follow_symlinks=False).st_mtime)
    return len(filed_at), min(filed_at, default=None)


def finish_request(layout: StateLayout, daemon: str, request: Request, outcome: Mapping[str, Any]) -> None:
    """Records a request's outcome, then unlinks the request; a crash in between repeats only the unlink."""
    fields = {"v": 1, "id": request.id, "daemon": daemon, "verb": request.verb, "time": utc_now()}
    body = {**fields, "outcome": dict(outcome)}
    write_record(_done(layout, request.id), body)
    # Durably: the daemon would act again on a request that came back after its outcome was pruned.
    unlink_durably(layout.requests(daemon) / f"{request.id}.json")
    _prune_done(layout)


def read_outcome(layout: StateLayout, request_id: str) -> dict[str, Any] | None:
    """Returns the outcome of a request; None until the daemon has acted on it."""
    try:
        outcome: dict[str, Any] = read_record(_done(layout, request_id))["outcome"]
    except FileNotFoundError:
        return None
    return outcome


def _take(layout: StateLayout, path: Path) -> Request | None:
    if path.suffix == ".json" and _done(layout, path.stem).exists():
        unlink_durably(path)
        return None
    try:
        return _read(path)
    except FileNotFoundError:
        return None  # the requester withdrew it
    except UnknownFormat as newer:
        # A newer `stoker` command may ask an older daemon: the daemon refuses the request and runs on.
        return Request(path.stem, f"({newer})", {}, None, "unknown")
    except (RecordDamaged, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.EACCES:
            raise  # a fault of the disk, not of the request
        with contextlib.suppress(FileNotFoundError):  # withdrawn meanwhile
            set_aside(path, layout.quarantine, "request", str(error))
        return None


def _read(path: Path) -> Request:
    # Other members of the group write here: any kind of file may have any name.
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise RecordDamaged(f"{path} is not a plain file of at most {MOST_BYTES} bytes")
    body = read_record(path)
    condition = body.get("if")
    if (
        f"{body.get('id')}.json" != path.name
        or not isinstance(body.get("verb"), str)
        or not isinstance(body.get("args"), dict)
        or not (condition is None or isinstance(condition, dict))
    ):
        raise RecordDamaged(f"{path} is no request under its own id, with a verb and args")
    return Request(body["id"], body["verb"], body["args"], condition, str(body.get("by", "unknown")))


def _names(directory: Path) -> list[str]:
    """Returns the names of the requests, oldest first: an id begins with its time."""
    with storage_errors("list", directory):
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))


def _done(layout: StateLayout, request_id: str) -> Path:
    return layout.requests_done / f"{request_id}.json"


def _prune_done(layout: StateLayout) -> None:
    directory = layout.requests_done
    with storage_errors("prune", directory):
        for name in _names(directory)[:-KEPT_DONE]:
            with contextlib.suppress(IsADirectoryError):  # not an outcome
                os.unlink(directory / name)
