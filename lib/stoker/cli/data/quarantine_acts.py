"""What `stoker quarantine` does itself while the daemon is down, its lock held; the next start records it.

A release leaves the mark `released` without its event, a drop the intent `dropping`: the daemon finishes both
with their events, as it does after a crash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import Kept, mark
from stoker.corpus.quarantine.rules import refusal
from stoker.corpus.records.pin import read_pin, write_pin
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources, write_source
from stoker.shards.audit.recheck import BY_ITSELF, FORCED, fetch_again, folder, look_task, released, words_of
from stoker.store.files import remove_durably, remove_tree
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.names import utc_now
from stoker.store.requests import Request, file_request


def release(pipeline: Pipeline, kept: Kept, request: Request) -> dict[str, Any]:
    """Look at the file again, unless by force, and let its source begin anew if it is good."""
    from stoker.shards.audit.recheck_worker import main as look

    if kept.released is not None:
        return {"released": kept.path, "why": kept.released.get("why"), "already": True}
    layout, dataset = pipeline.layout, pipeline.dataset.name
    source = read_sources(layout, dataset).get(kept.path)
    no = refusal(kept, source)
    if no is not None or source is None:
        return {"refused": no}
    if source.never_came:
        return fetch_again(layout, kept.path)
    force = request.args.get("force") is True
    receipt = read_receipts(layout, dataset).get(kept.path)
    result = look(
        look_task(pipeline, kept, source, receipt, decode=not force, to_hot=False), lambda *_, **__: None
    )
    if result["status"] == "changed":
        args = {"path": kept.path, "sha256": kept.sha256}
        file_request(layout, DOWNLOAD_WATCHDOG, "dispute", args)
        no = "its file differs from what its receipt says: it is hashed again, and built if good"
    elif result["status"] == "gone":
        no = "its file is not there any more, and no good copy of it was kept"
    elif result["status"] == "bad":
        times = int(kept.body.get("revalidations") or 0) + 1
        mark(folder(pipeline, kept), revalidated=utc_now(), revalidations=times)
        return {"refused": words_of(result), "finding": True}
    elif result["place"] == "here":
        no = "only the copy in quarantine is left of it, and the stage-shard loop alone puts files on hot"
        return {"refused": f"{no}: start it, then release this", "again": True}
    if no is not None:
        return {"refused": no}
    why = FORCED if force else BY_ITSELF
    write_source(layout, released(source, why))
    mark(folder(pipeline, kept), released={"time": utc_now(), "why": why, "told": False})
    pin = read_pin(layout, dataset)
    if pin is not None and pin.complete:  # one of its files is under way again
        write_pin(layout, replace(pin, complete=False))
    return {"released": kept.path, "why": why}


def drop(pipeline: Pipeline, kept: Kept, request: Request) -> dict[str, Any]:
    """Remove what is kept of it."""
    reason_too = request.args.get("reason_too") is True
    where = folder(pipeline, kept)
    if kept.kind == "checkpoint":  # an emptied place would count as one that is kept
        remove_tree(where)
    elif kept.things or reason_too:
        why = {"why": f"asked for by {request.by}", "bytes": kept.bytes, "reason_too": reason_too}
        mark(where, dropping=why)
        for thing in (where / name for name in kept.things):
            remove_durably(thing)
    return {"dropped": kept.name, "bytes": kept.bytes}
