"""The stage-shard loop's state over a small pipeline: records and effects are real, workers are scripted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from stoker.corpus.quarantine.directory import QuarantineEntry, open_folder
from stoker.corpus.records.receipts import Receipt, ReceiptState, write_receipt
from stoker.corpus.records.sources import PUBLISHED, Books, Source, SourceState, write_source
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Situation
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.context import DaemonContext
from stoker.kit.event_types import event_types
from stoker.kit.events import Events
from stoker.kit.loop import Waiter
from stoker.kit.workers.parent import Worker
from stoker.kit.workers.pool import Activity, Job, WorkerPool
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, record_name
from stoker.store.record import read_record
from stoker.store.requests import Request, file_request, pending_requests
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.apply import Effects
from stokerd.sharding.effects import (
    Alert,
    AlertOver,
    Answer,
    Begin,
    Effect,
    Event,
    MarkFinding,
    StartOver,
    Write,
)
from stokerd.sharding.situation import situation_of
from stokerd.sharding.state import State
from stokerd.sharding.status import Status
from stokerd.sharding.work import Work
from support.asked import filed_requests
from support.pipelines import DataPipeline

MIB = 1 << 20
BOOKS = {
    "rows": 3,
    "documents": 2,
    "dropped": {"null": 1},
    "chars": 9,
    "tokens": 100,
    "train": {"documents": 1, "tokens": 90},
    "val": {"documents": 1, "tokens": 10},
}
MANIFEST = "ab" * 32


class Recorded(Events):
    """Events that are kept in memory as well: words with their fields."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.all: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.all.append((event, {"level": event_types("stage_shard")[event].level, **fields}))

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.all]


@dataclass
class ScriptedWorker:
    """A worker process that does nothing; `sent` is what it was sent."""

    pid: int = field(default_factory=os.getpid)
    sent: list[Mapping[str, Any]] = field(default_factory=list)

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)


@dataclass
class Clock:
    """The monotonic clock, as the test sets it."""

    now: float = 1000.0


class ScriptedPool(WorkerPool[Any]):
    """A pool that starts no process: the test says what its workers say and how they end."""

    tasks: dict[str, Mapping[str, Any]]

    def __init__(self, waiter: Waiter) -> None:
        super().__init__("scripted", waiter)
        self.tasks = {}

    def start(self, activity: Activity, subject: str, task: Mapping[str, Any], facts: Any) -> Job[Any]:
        assert subject not in self._jobs, f"{subject} is being worked on"
        self.tasks[subject] = task
        job = self._jobs[subject] = Job(activity, subject, cast(Worker, ScriptedWorker()), facts)
        return job

    def end(self, subject: str) -> Job[Any]:
        """Take the job out, as the real pool does before it hands out a worker's end."""
        return self._jobs.pop(subject)


class Shard:
    """A pipeline's state, its effects, and what the test reads of both."""

    def __init__(self, data: DataPipeline, *, once: bool = False) -> None:
        self.data = data
        self.pipeline = pipeline = self.data.pipeline
        self.layout = pipeline.layout
        self.layout.create()
        self.context = DaemonContext(STAGE_SHARD, pipeline, Waiter(), once=once)
        self.events = Recorded(self.layout, self.context.log, self.context.metrics.events)
        self.context.events = self.events
        self.start()

    def start(self) -> None:
        """Start the daemon, or start it again: all it knows is what is on disk."""
        self.pool = ScriptedPool(self.context.waiter)
        self.state = State(self.context, self.pool)
        self.dataset = self.state.dataset
        self.effects = Effects(self.context, self.state)

    def close(self) -> None:
        """Let go of what the daemon's context holds open."""
        self.events.close()
        self.context.waiter.close()

    # Records

    def pin(self) -> None:
        """Pin the dataset to a tokenizer."""
        self.apply(self.dataset.pinning.freeze({"sha256": "ab" * 32, "vocab_size": 400, "eot": 0}, ()))

    def source(self, path: str = "a", state: SourceState = "seen", **changes: Any) -> Source:
        """Put a source on record, with books and a key where its state has them."""
        content = changes.pop("content", path)
        source = Source("prose", path, MIB, f"{content:0>64}", state)
        key_of = self.dataset.pinning.key_of()
        if state in ("building", "proven", "synced", "released"):
            source = replace(source, key=f"{content:f<64}" if key_of is None else key_of(source.sha256))
        if state in ("proven", "synced", "released"):
            source = replace(source, books=Books.from_mapping(BOOKS), manifest_sha256=MANIFEST)
        source = replace(source, **changes)
        write_source(self.layout, source)
        self.dataset.put(source)
        return source

    def receipt(self, path: str = "a", state: ReceiptState = "verified", **changes: Any) -> Receipt:
        """Put a receipt on record for the content that `source` makes up, and believe it."""
        receipt = Receipt("prose", path, f"/there/{path}", MIB, f"{path:0>64}", "", "e", state)
        receipt = replace(receipt, **changes)
        write_receipt(self.layout, receipt)
        records = self.dataset
        records.receipts = {**records.receipts, path: receipt}
        records.touched.add(path)
        return receipt

    def finding(self, path: str = "a", **body: Any) -> QuarantineEntry:
        """Put a finding against the path's file into quarantine, and read it."""
        sha256 = self.dataset.sources[path].sha256
        reason = {"path": path, "sha256": sha256, "reason": "page_corrupt", "detail": "", **body}
        folder = open_folder(self.layout.quarantine, "parquet", record_name("prose", path), reason)
        return self.kept(folder.name)

    def kept(self, name: str) -> QuarantineEntry:
        """What is in quarantine under this name now."""
        quarantine = self.state.quarantine
        quarantine.read_soon()
        quarantine.read()
        return next(one for one in quarantine.kept if one.name == name)

    def ask(self, verb: str, **args: Any) -> Request:
        """File a request and read it."""
        name = file_request(self.layout, STAGE_SHARD, verb, args)
        self.state.inbox.requests = pending_requests(self.layout, STAGE_SHARD)
        return next(one for one in self.state.inbox.requests if one.id == name)

    def answer(self, request: Request) -> Mapping[str, Any] | None:
        """The outcome of a request as whoever asked reads it; None while it waits."""
        if any(one.id == request.id for one in pending_requests(self.layout, STAGE_SHARD)):
            return None
        outcome: Mapping[str, Any] = read_record(self.layout.requests_done / f"{request.id}.json")["outcome"]
        return outcome

    def disputes(self) -> list[str]:
        """The paths that the download watchdog was told about."""
        filed = filed_requests(self.layout, DOWNLOAD_WATCHDOG)
        return [str(one.args["path"]) for one in filed if one.verb == "dispute"]

    def status(self) -> dict[str, Any]:
        """The status that people read, with its line in words."""
        Status(self.context).show(self.state)
        self.context.write_snapshot("stopped")  # writes it whatever was shown a moment ago
        shown: dict[str, Any] = json.loads(self.pipeline.runtime.status(STAGE_SHARD).read_bytes())
        return shown

    def read(self) -> None:
        """Read what others wrote."""
        self.dataset.read()
        self.state.inbox.read()

    def situation(self) -> Situation:
        """The facts that the schedule decides on."""
        return situation_of(self.dataset)

    def on_disk(self, path: str = "a") -> Source:
        return self.data.sources()[path]

    # Disks

    def look(self, place: str = "hot", *, free: int = 900 * MIB, **seen: Any) -> None:
        """Have a lister own the disk, look at it and measure it; all is there that the records claim, unless
        `seen` says otherwise."""
        disk = self.state.hot if place == "hot" else self.state.warm
        assert disk is not None
        if disk.lister not in self.state.pool:
            self.apply(ACTIVITIES["list"].begin(self.dataset, disk.lister))
            self.hear(disk.lister, {"kind": "ready"})
        disk.look_soon()
        question = disk.question(self.dataset.sources)
        assert question is not None
        self.hear(disk.lister, {"kind": "seen", **self._claimed(place), **seen})
        self.measure(place, free=free)

    def _claimed(self, place: str) -> dict[str, Any]:
        sources = self.dataset.sources
        staged = tuple(parquet_name(one) for one in sources.in_state("staged", "building"))
        published = [one for one in sources.values() if one.state in PUBLISHED]
        there = [one for one in published if (not one.evicted if place == "hot" else one.on_warm)]
        sets = {"published": tuple(one.key16 for one in there), "temporaries": (), "trash": ()}
        return {**sets, "parquet": staged, "building": (), "building_bytes": {}, "partial": {}}

    def measure(self, place: str = "hot", *, free: int, writable: bool = True) -> None:
        """Have the lister measure the disk, of 1000 MiB, as it is now."""
        disk = self.state.hot if place == "hot" else self.state.warm
        assert disk is not None
        size = {"device": 7, "total_bytes": 1000 * MIB, "free_bytes": free}
        mark = {"path": str(disk.root), "device": 7, "inode": 1}
        about = {"kind": "measured", "number": 1 << 30, "disk": size, "writable": writable, "owner": mark}
        self.hear(disk.lister, about)

    @property
    def size(self) -> DiskSize | None:
        return self.state.hot.measure

    # Jobs

    def job(self, kind: str, subject: str = "a", work: Work | None = None) -> Job[Any]:
        """A job of a kind at work, with the facts given or those its activity begins it with."""
        if work is None:
            self.apply(ACTIVITIES[kind].begin(self.dataset, subject))
        else:
            self.apply([Begin("prose", ACTIVITIES[kind], subject, {}, work)])
        return self.pool.jobs[-1]

    def task(self, kind: str, subject: str) -> dict[str, Any]:
        """The task that a worker would be given."""
        begun = ACTIVITIES[kind].begin(self.dataset, subject)
        return next(dict(effect.task) for effect in begun if isinstance(effect, Begin))

    def hear(self, subject: str, *messages: Mapping[str, Any]) -> None:
        """Have a worker say something."""
        job = self.pool[subject]
        for message in messages:
            self.apply(ACTIVITIES[job.kind].on_message(self.dataset, job, message))

    def sent(self, subject: str) -> list[Mapping[str, Any]]:
        """What a worker was sent."""
        return cast(ScriptedWorker, self.pool[subject].worker).sent

    def end(self, subject: str, outcome: Outcome) -> list[str]:
        """End a job, apply the effects and return them in brief, in their order."""
        job = self.pool.end(subject)
        return self.apply(ACTIVITIES[job.kind].end(self.dataset, job, outcome))

    def done(self, subject: str = "a", **result: Any) -> list[str]:
        """End a job with its worker's result."""
        return self.end(subject, Outcome("done", result=result))

    def apply(self, effects: Iterable[Effect]) -> list[str]:
        """Apply each as it is asked for, as the loop does; returns them in brief."""
        done: list[str] = []

        def noted() -> Iterable[Effect]:
            for effect in effects:
                yield effect
                done.append(brief(effect))

        self.effects.apply(noted())
        return done


MakeShard = Callable[..., Shard]


def brief(effect: Effect) -> str:
    """An effect in a word or two."""
    match effect:
        case Write(source):
            return f"write {source.state}"
        case Event(word):
            return word
        case Alert(word):
            return f"alert {word}"
        case AlertOver(word):
            return f"over {word}"
        case Begin(_, activity):
            return f"begin {activity.kind}"
        case Answer(_, outcome):
            return f"answer {next(iter(outcome))}"
        case MarkFinding(_, changes):
            return f"mark {' '.join(changes)}"
        case StartOver():
            return "start over"
    return type(effect).__name__
