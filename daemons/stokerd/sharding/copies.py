"""Shard sets on their way between hot and warm: what is started, and what becomes of it when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.moves import Evict, Hydrate, KeepHot, Move, Recall, Sync
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.store.errors import StorageError
from stokerd.common.alerts import Told
from stokerd.sharding.disks import TRIES_ONCE
from stokerd.sharding.failures import FailureDesk
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.outcomes import RETRY_S, paused
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES, ShardTasks
from stokerd.sharding.warm_disk import NoWarm, WarmYard

MOVES = frozenset(("sync", "evict", "hydrate", "recall"))
DOUBTS = 3  # tries to read a copy that looks wrong where nothing can be read past the cache


class SetMoves:
    """`rotten` are the keys whose copy on warm is known to be wrong, until another is made."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        patience: Retries,
        tasks: ShardTasks,
        book: SourceBook,
        told: Told,
        hot: HotYard,
        warm: WarmYard | NoWarm,
        key_of: Callable[[Source], str],
        set_invalid: Callable[[Source, str], None],
        failures: FailureDesk,
    ) -> None:
        self._context, self._events = context, context.events
        self._crew, self._patience, self._tasks, self._book, self._told = crew, patience, tasks, book, told
        self._hot, self._warm = hot, warm
        self._key_of, self._set_invalid, self._failures = key_of, set_invalid, failures
        self.rotten: set[str] = set()
        self._moved = context.metrics.counter("shard_moved_bytes_total", "Bytes of sets moved.", ("move",))
        for move in ("sync", "evict", "hydrate"):
            self._moved.labels(move)

    def do(self, move: Move) -> None:
        """Begin a move."""
        source = self._book.sources[move.path]
        match move:
            case Sync():
                self._start("sync", source, self._tasks.sync(source))
            case Evict():
                self._start("evict", source, self._tasks.evict(source))
            case Hydrate():
                self._start("hydrate", source, self._tasks.hydrate(source))
            case Recall():
                self._start("recall", source, self._tasks.recall(source, self._key_of(source)))
            case KeepHot():
                self._keep_hot(source, "the warm disk is away")

    def _start(self, activity: str, source: Source, task: dict[str, Any]) -> None:
        task["disks"] = [yard.mark for yard in (self._hot, self._warm)]
        self._crew.start(ACTIVITIES[activity], source.path, task, {})

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """Record what a finished move made true; one that failed is tried again for ever."""
        source = self._book.sources[job.subject]
        self._hot.measure_soon()
        self._warm.measure_soon()
        verdict = self._failures.judge(job, ended)
        if verdict.kind == "disk_full":
            self._no_room(job.kind, source, verdict.reason)
            return
        if verdict.kind != "done" or verdict.fields is None:
            self._try_again(job.kind, source, verdict.reason)
            return
        if job.kind == "recall":
            self._recalled(source, verdict.fields["proofs"][0])
            return
        result = verdict.fields
        self._patience.succeeded(source.path)
        self._patience.succeeded(paused(job.kind))
        self._told.over(f"{job.kind}_failed", tell=f"{job.kind}_resumed")
        match (job.kind, result["status"]):
            case ("sync", "copied" | "existed"):
                self._synced(source, result)
            case ("sync", "bad_source"):
                self._set_invalid(source, str(result["reason"]))
            case ("hydrate", "copied" | "existed"):
                self._hydrated(source, result)
            case ("hydrate", "bad_source"):
                self._rotten(source, str(result["reason"]))
            case (_, "missing"):
                self._look_again(job.kind, source, str(result["reason"]))
            case ("evict", "evicted"):
                self._evicted(source, result)
            case ("evict", "unreadable_copy"):
                self._hot.published.add(str(source.key)[:16])
                self._keep_hot(source, str(result["reason"]))
                self._patience.failed(source.path)
            case ("evict", "bad_copy"):
                self._bad_copy(source, str(result["reason"]))
            case ("evict", "lost"):
                self._rotten(source, str(result["reason"]))

    def _synced(self, source: Source, result: Mapping[str, Any]) -> None:
        state = "synced" if source.state == "proven" else source.state
        self._book.write(source.moved(state, on_warm=True))
        self.rotten.discard(str(source.key))
        self._warm.took(str(source.key)[:16])
        self._tell("shard_set_synced", "sync", source, result)

    def _hydrated(self, source: Source, result: Mapping[str, Any]) -> None:
        self._book.write(replace(source, evicted=False, evicting=False))
        self._hot.published.add(str(source.key)[:16])
        self._tell("shard_set_hydrated", "hydrate", source, result)

    def _evicted(self, source: Source, result: Mapping[str, Any]) -> None:
        self._book.write(replace(source, evicted=True, evicting=False))
        self._hot.published.discard(str(source.key)[:16])
        self._tell("shard_set_evicted", "evict", source, result)

    def _bad_copy(self, source: Source, reason: str) -> None:
        """The set is on hot, still or again: it is copied anew, or proven first if not on record."""
        self._hot.published.add(str(source.key)[:16])
        if source.evicted:
            self._rotten(source, reason)
        else:
            self._warm.copy_lost(source.path, f"its copy on warm is wrong: {reason}")

    def _tell(self, event: str, activity: str, source: Source, result: Mapping[str, Any]) -> None:
        self._moved.labels(activity).inc(result["bytes"])
        more: dict[str, Any] = {"cached": True} if result["cached"] else {}
        key = str(source.key)[:16]
        self._events.record(event, path=source.path, key=key, bytes=result["bytes"], **more)

    def _keep_hot(self, source: Source, reason: str) -> None:
        """Nothing was moved yet: the set stays where it is and may be used again."""
        self._book.write(replace(source, evicting=False))
        self._events.record("eviction_cancelled", level="warning", path=source.path, reason=reason)

    def _rotten(self, source: Source, reason: str) -> None:
        """There is no right copy of the set left: it is made again, and then copied over the wrong one."""
        self.rotten.add(str(source.key))
        self._book.renew(source, "its copy on warm is wrong, and no other is on record", level="warning")
        key = str(source.key)[:16]
        self._events.record("warm_copy_rotten", level="error", path=source.path, key=key, reason=reason)

    def _look_again(self, activity: str, source: Source, reason: str) -> None:
        """What should have been copied is not there: a look at that disk brings the records in line."""
        (self._hot if activity == "sync" else self._warm).look_soon()
        self._patience.failed(source.path)
        self._told.trouble(f"{activity}_failed", path=source.path, reason=reason)

    def _recalled(self, source: Source, proof: Mapping[str, Any]) -> None:
        if proof["verdict"] == "proven":
            self._patience.succeeded(source.path)
            if self._book.sources.owner(source.sha256) is not None:
                return  # never two owners of one set
            proven = source.moved(
                "proven", key=proof["key"], books=proof["books"], manifest_sha256=proof["manifest_sha256"]
            )
            self._book.write(proven.moved("synced", on_warm=True, evicted=True, reason=None, deaths=()))
            key = str(proof["key"])[:16]
            self._events.record("shard_set_recalled", path=source.path, key=key)
        elif proof["verdict"] == "invalid":
            self.rotten.add(self._key_of(source))
            reason = f"{proof['reason']}; it is built again"
            self._events.record("warm_copy_rotten", level="error", path=source.path, reason=reason)
        else:
            self._try_again("recall", source, str(proof["reason"]))

    def _no_room(self, activity: str, source: Source, reason: str) -> None:
        """It goes on as soon as there is room; what came of it so far takes some of that."""
        self._patience.retry_in(source.path, RETRY_S)
        if activity == "hydrate":
            self._hot.discard(self._tasks.coming(source))
        self._failures.disks.failed(activity, source.path, reason)

    def _try_again(self, activity: str, source: Source, reason: str) -> None:
        """Wait, with this set and, lest each of many fails in turn, with all that is to go the same way."""
        self._patience.failed(source.path)
        wait_s = self._patience.failed(paused(activity))
        self._warm.look_soon()
        self._told.trouble(f"{activity}_failed", path=source.path, reason=reason, retry_in_s=round(wait_s, 1))
        if activity == "hydrate":  # nobody may want it any more, and what came of it takes room on hot
            self._hot.discard(self._tasks.coming(source))
        doubted = self._patience.failures(source.path) >= DOUBTS and "page cache only" in reason
        if activity == "hydrate" and doubted:
            self._rotten(source, reason)
        if self._context.once and self._patience.failures(paused(activity)) >= TRIES_ONCE:
            raise StorageError(f"{activity}: {reason}")
