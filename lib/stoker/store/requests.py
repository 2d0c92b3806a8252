"""Asking the owner of a file to change it: one record a request, named by its id.

The owner acts, writes `done/<id>.json`, and only then unlinks the request: an id found in done is not acted
on again. A request states a goal and the condition it holds under, so acting twice would do no harm either.
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
from stoker.store.names import new_id, utc_now
from stoker.store.record import RecordDamaged, read_record, set_aside, write_record

MOST_BYTES = 64 * 1024
KEPT_DONE = 1000
NOT_OURS = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Request:
    """What is asked: a verb with arguments, to be done only if the condition holds."""

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
    """Ask a daemon for something, durably; returns the id under which the outcome will stand in done/."""
    request_id = new_id()
    body = {"v": 1, "id": request_id, "verb": verb, "args": dict(args), "by": f"uid {os.getuid()}"}
    body["if"] = None if condition is None else dict(condition)
    write_record(layout.requests(daemon) / f"{request_id}.json", body)
    return request_id


def pending_requests(
    layout: StateLayout, daemon: str, stuck: MutableMapping[str, StorageError] | None = None
) -> list[Request]:
    """The requests to act on, oldest first; done ones are unlinked, damaged ones set aside.

    An entry that can be neither read nor moved keeps no other from being read: it goes into `stuck`, by its
    name. What only its owner may move is not tried again while it is there.
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


def filed_requests(layout: StateLayout, daemon: str) -> list[Request]:
    """What a daemon was asked and has not acted on, for those who ask: nothing is removed or set aside."""
    directory = layout.requests(daemon)
    found = []
    for name in _names(directory):
        # What cannot be read is for its owner to judge.
        with contextlib.suppress(FileNotFoundError, RecordDamaged, StorageError, UnknownFormat):
            if not _done(layout, name.removesuffix(".json")).exists():
                found.append(_read(directory / name))
    return found


def finish_request(layout: StateLayout, daemon: str, request: Request, outcome: Mapping[str, Any]) -> None:
    """Record a request's outcome and take the request away; a crash in between repeats only the latter."""
    told = {"v": 1, "id": request.id, "daemon": daemon, "verb": request.verb, "time": utc_now()}
    body = {**told, "outcome": dict(outcome)}
    write_record(_done(layout, request.id), body)
    # Durably: once its outcome is pruned, a request that came back would be acted on again.
    unlink_durably(layout.requests(daemon) / f"{request.id}.json")
    _prune_done(layout)


def read_outcome(layout: StateLayout, request_id: str) -> dict[str, Any] | None:
    """What became of a request; None while nobody has acted on it."""
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
        return None  # whoever filed it took it back
    except UnknownFormat as newer:
        # Who asks may be newer than who is asked, which is no reason to end: it is refused, as a verb is.
        return Request(path.stem, f"({newer})", {}, None, "unknown")
    except (RecordDamaged, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.EACCES:
            raise  # the disk's fault, not the request's
        with contextlib.suppress(FileNotFoundError):  # taken back this instant
            set_aside(path, layout.quarantine, "request", str(error))
        return None


def _read(path: Path) -> Request:
    # Others of the group write here: anything may lie around under any name.
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
    """What was filed, oldest first: an id begins with its time."""
    with storage_errors("list", directory):
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))


def _done(layout: StateLayout, request_id: str) -> Path:
    return layout.requests_done / f"{request_id}.json"


def _prune_done(layout: StateLayout) -> None:
    directory = layout.requests_done
    with storage_errors("prune", directory):
        for name in _names(directory)[:-KEPT_DONE]:
            with contextlib.suppress(IsADirectoryError):  # no outcome of ours
                os.unlink(directory / name)
