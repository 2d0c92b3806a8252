"""What `stoker quarantine` does itself while the daemon is down, its lock held; the next start tells of it.

A release leaves the mark `released` untold, a drop the intent `dropping`: the daemon finishes both with their
events, as it does after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import Kept, mark
from stoker.corpus.quarantine.rules import refusal
from stoker.corpus.records.pin import read_pin, write_pin
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source, write_source
from stoker.shards.audit.recheck import BY_ITSELF, FORCED, fetch_again, folder, look_task, released, words_of
from stoker.store.files import remove_tree, unlink_durably
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.names import utc_now
from stoker.store.record import read_record
from stoker.store.requests import Request, file_request


def release(pipeline: Pipeline, kept: Kept, request: Request) -> dict[str, Any]:
    """Look at the file again, unless by force, and let its source begin anew if it is good."""
    if kept.released is not None:
        return {"released": kept.path, "why": kept.released.get("why"), "already": True}
    source = _source(pipeline, kept)
    no = refusal(kept, source)
    if no is not None or source is None:
        return {"refused": no}
    if source.never_came:
        return fetch_again(pipeline.layout, kept.path)
    from stoker.shards.audit.recheck_worker import main as look

    force = request.args.get("force") is True
    receipt = _receipt(pipeline, kept)
    task = look_task(pipeline, kept, source, receipt, decode=not force, to_hot=False)
    result = look(task, _silent)
    if result["status"] != "good":
        return _not_good(pipeline, kept, result)
    if result["place"] == "here":
        return {
            "refused": "only the copy in quarantine is left of it, and the stage-shard loop alone puts files "
            "on hot: start it, then release this",
            "again": True,
        }
    why = FORCED if force else BY_ITSELF
    write_source(pipeline.layout, released(source, why))
    mark(folder(pipeline, kept), released={"time": utc_now(), "why": why, "told": False})
    pin = read_pin(pipeline.layout, source.dataset)
    if pin is not None and pin.complete:  # one of its files is under way again
        write_pin(pipeline.layout, replace(pin, complete=False))
    return {"released": kept.path, "why": why}


def _not_good(pipeline: Pipeline, kept: Kept, result: Mapping[str, Any]) -> dict[str, Any]:
    if result["status"] == "changed":
        args = {"path": kept.path, "sha256": kept.sha256}
        file_request(pipeline.layout, DOWNLOAD_WATCHDOG, "dispute", args)
        return {
            "refused": "its file differs from what its receipt says: it is hashed again, and built if good"
        }
    if result["status"] == "gone":
        return {"refused": "its file is not there any more, and no good copy of it was kept"}
    times = int(kept.body.get("revalidations") or 0) + 1
    mark(folder(pipeline, kept), revalidated=utc_now(), revalidations=times)
    return {"refused": words_of(result), "finding": True}


def drop(pipeline: Pipeline, kept: Kept, request: Request) -> dict[str, Any]:
    """Remove what is kept of it."""
    reason_too = request.args.get("reason_too") is True
    where = folder(pipeline, kept)
    if kept.kind == "checkpoint":  # an emptied place would count as one that is kept
        remove_tree(where)
        return {"dropped": kept.name, "bytes": kept.bytes}
    if kept.things or reason_too:
        why = {"why": f"asked for by {request.by}", "bytes": kept.bytes, "reason_too": reason_too}
        mark(where, dropping=why)
        for name in kept.things:
            thing = where / name
            if thing.is_dir() and not thing.is_symlink():
                remove_tree(thing)
            else:
                unlink_durably(thing)
    return {"dropped": kept.name, "bytes": kept.bytes}


def _source(pipeline: Pipeline, kept: Kept) -> Source | None:
    try:
        body = read_record(pipeline.layout.source(pipeline.dataset.name, kept.path))
    except FileNotFoundError:
        return None
    return Source.from_record(body)


def _receipt(pipeline: Pipeline, kept: Kept) -> Receipt | None:
    try:
        body = read_record(pipeline.layout.receipt(pipeline.dataset.name, kept.path))
    except FileNotFoundError:
        return None
    return Receipt.from_record(body)


def _silent(kind: str, **fields: Any) -> None:
    """A look's messages: nobody waits for them here."""
