"""Sync, evict, hydrate and recall: moves of shard sets between hot and warm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from stoker.corpus.records.sources import KEY16, Books, Source
from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.store.errors import StorageError
from stoker.store.files import TEMPORARY
from stoker.store.record import new_id
from stokerd.sharding.activities.base import ShardActivity, copy_lost, end_once, proof_task, reject_set
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import marks
from stokerd.sharding.effects import Alert, AlertOver, Begin, Effect, StartOver, Write, event
from stokerd.sharding.work import Message, SourceWork

RETRY_S = 1.0  # after a full disk: the move continues once there is space
DOUBTS = 3  # tries to read a copy that looks wrong, where the page cache cannot be bypassed
# The kinds of moves, each with the event of its success.
MOVES = {"sync": "shard_set_synced", "evict": "shard_set_evicted", "hydrate": "shard_set_hydrated"}


def _begin_move(kind: str, dataset: DatasetState, path: str) -> Iterator[Effect]:
    source = dataset.sources[path]
    hot, warm = (str(dataset.set_on(place, source)) for place in ("hot", "warm"))
    assert dataset.pipeline.warm_layout is not None  # moves begin only with a warm disk
    trash = (dataset.pipeline.warm_layout if kind == "sync" else dataset.pipeline.hot_layout).trash
    places = {"what": "evict", "hot": hot, "copy": warm}
    if kind != "evict":
        here, there = (hot, warm) if kind == "sync" else (warm, hot)
        places = {"what": "copy", "source": here, "target": there}
    identity = {"key": source.key, "manifest_sha256": source.manifest_sha256}
    disks = marks(dataset.hot, dataset.warm)
    task = {**places, **identity, "trash": str(trash), "trash_id": new_id(), "disks": disks}
    yield Begin(dataset.name, _MOVES[kind], path, task, SourceWork())


def _begin_recall(dataset: DatasetState, path: str) -> Iterator[Effect]:
    """Proves the set on warm with the path's key: the set's record was lost."""
    yield Begin(dataset.name, RECALL, path, proof_task(dataset, "warm", path), SourceWork())


def on_end(dataset: DatasetState, job: Job[SourceWork], outcome: Outcome) -> Iterator[Effect]:
    """Delays a failed move until there is space, or until its retry time."""
    if outcome.kind == "disk_full":
        dataset.retries.retry_in(job.subject, RETRY_S)
        _discard_copy(dataset, job)
        dataset.pauses.disk_full(job, outcome.reason)
    else:
        yield from _try_again(dataset, job, outcome.reason)


def on_moved(dataset: DatasetState, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    """Records the result of a finished move."""
    source, kind, status = dataset.sources[job.subject], job.kind, result["status"]
    key, reason = source.key16, str(result["reason"])
    dataset.retries.succeeded(source.path)
    dataset.retries.succeeded(f"/{kind}")
    yield AlertOver(f"{kind}_failed", tell="moves_resumed", fields={"kind": kind})
    match (kind, status):
        case ("sync", "copied" | "existed"):
            now = "synced" if source.state == "proven" else source.state
            yield Write(source.moved(now, on_warm=True))
            dataset.rotten.discard(str(source.key))
            if dataset.warm is not None:
                dataset.warm.published.add(key)
        case ("sync", "bad_source"):
            yield from reject_set(dataset, source, reason)
        case ("hydrate", "copied" | "existed"):
            yield Write(replace(source, evicted=False, evicting=False))
            dataset.hot.published.add(key)
        case ("evict", "evicted"):
            yield Write(replace(source, evicted=True, evicting=False))
            dataset.hot.published.discard(key)
        case ("evict", "unreadable_copy"):
            dataset.hot.published.add(key)
            yield from keep_hot(source, reason)
            dataset.retries.failed(source.path)
        case ("evict", "bad_copy"):  # hot has the set: the loop copies it again
            dataset.hot.published.add(key)
            if source.evicted:  # the set on hot is proven first: its record says evicted
                yield from _rotten(dataset, source, reason)
            else:
                yield from copy_lost(source, f"its copy on warm is wrong: {reason}")
        case (_, "missing"):  # a look at that disk brings the records in line
            disk = dataset.hot if kind == "sync" else dataset.warm
            assert disk is not None  # moves need a warm disk
            disk.look_soon()
            dataset.retries.failed(source.path)
            yield Alert(f"{kind}_failed", fields={"path": source.path, "reason": reason})
        case ("hydrate", "bad_source") | ("evict", "lost"):
            yield from _rotten(dataset, source, reason)
    if status in ("copied", "existed", "evicted"):
        dataset.progress.moved_bytes[kind] += int(result["bytes"])
        more: dict[str, Any] = {"cached": True} if result["cached"] else {}
        yield event(MOVES[kind], path=source.path, key=key, bytes=result["bytes"], **more)


def keep_hot(source: Source, reason: str) -> Iterator[Effect]:
    """Cancels an eviction before any move: the set stays on hot and may be used again."""
    yield Write(replace(source, evicting=False))
    yield event("eviction_cancelled", path=source.path, reason=reason)


def _rotten(dataset: DatasetState, source: Source, reason: str) -> Iterator[Effect]:
    """Records that no right copy of the set exists: it is made again and copied over the wrong copy."""
    dataset.rotten.add(str(source.key))
    yield StartOver(source, "its copy on warm is wrong, and no other is on record", "warning")
    key = source.key16
    yield event("shard_set_invalid", path=source.path, key=key, reason=reason, place="warm")


def on_recalled(dataset: DatasetState, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, proof = dataset.sources[job.subject], result["proofs"][0]
    if proof["verdict"] == "proven":
        dataset.retries.succeeded(source.path)
        if dataset.sources.owner(source.sha256) is not None:
            return  # one content has one set
        books, manifest = Books.from_mapping(proof["books"]), proof["manifest_sha256"]
        proven = source.moved("proven", key=proof["key"], books=books, manifest_sha256=manifest)
        yield Write(proven.moved("synced", on_warm=True, evicted=True, reason=None, deaths=()))
        yield event("shard_set_recalled", path=source.path, key=str(proof["key"])[:KEY16])
    elif proof["verdict"] == "invalid":
        dataset.rotten.add(dataset.key(source))
        reason = f"{proof['reason']}; it is built again"
        yield event("shard_set_invalid", path=source.path, reason=reason, place="warm")
    else:
        yield from _try_again(dataset, job, str(proof["reason"]))


def _try_again(dataset: DatasetState, job: Job[SourceWork], reason: str) -> Iterator[Effect]:
    """Delays this set, and all copies of its kind: otherwise each of many sets would fail in turn."""
    kind, source = job.kind, dataset.sources[job.subject]
    dataset.retries.failed(source.path)
    wait_s = dataset.retries.failed(f"/{kind}")
    if dataset.warm is not None:
        dataset.warm.look_soon()
    about = {"path": source.path, "reason": reason, "retry_in_s": round(wait_s, 1)}
    yield Alert(f"{kind}_failed", fields=about)
    _discard_copy(dataset, job)
    if kind == "hydrate" and "page cache only" in reason and dataset.retries.failures(source.path) >= DOUBTS:
        yield from _rotten(dataset, source, reason)
    end_once(dataset, f"/{kind}", StorageError(f"{kind}: {reason}"))


def _discard_copy(dataset: DatasetState, job: Job[SourceWork]) -> None:
    """Discards an unfinished copy on hot: it takes space, and no run may want the set now."""
    if job.kind == "hydrate":
        path = dataset.set_on("hot", dataset.sources[job.subject])
        dataset.hot.discard(str(path.with_name(f"{TEMPORARY}{path.name}")))


_move = partial(ShardActivity, is_reusable=True, on_end=on_end)
_MOVES = {
    kind: _move(
        kind=kind, module="stoker.shards.move.move_worker", begin=partial(_begin_move, kind), on_done=on_moved
    )
    for kind in MOVES
}
SYNC, EVICT, HYDRATE = _MOVES.values()
RECALL = _move(
    kind="recall", module="stoker.shards.format.proof_worker", begin=_begin_recall, on_done=on_recalled
)
