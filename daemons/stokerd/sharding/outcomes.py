"""What becomes of a source when a worker on it ends: the records, the findings, the next try."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.corpus.quarantine.move import open_folder
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import DOWNLOAD_FAILED, PUBLISHED, SOURCE_ROTTEN, Source
from stoker.corpus.schedule.outcome import Verdict, convicted
from stoker.corpus.staging.disk_full import LOOK_S
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.kit.workers.retries import Retries
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.names import record_name
from stoker.store.requests import file_request
from stokerd.sharding.failures import FailureDesk
from stokerd.sharding.growth import GrowthDesk
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import FLAW_FIELDS

HF_TOKENIZERS = "tokenizers"  # the engine that every file can be built with
FOOTER = -1  # stands for the row group where the footer is what was being read
RETRY_S = 1.0  # where nobody is to blame
DOUBT_S = 5.0  # time for a look at the disk

_NOTHING_COMES = {
    DOWNLOAD_FAILED: "the event download_given_up says why it could not be fetched; it is tried again now "
    "and then",
    SOURCE_ROTTEN: "the event source_rotten says what the file has now; it begins anew with a good copy",
}


@dataclass(frozen=True)
class Doubt:
    """A death that may be the disk's, of a worker on this content, at a monotonic time."""

    job: Job[Any]
    sha256: str
    reason: str
    since: float


class SourceOutcomes:
    """Takes the ends of workers; `convicted` are the findings against paths that wait for quarantine,
    `invalid_sets` the reasons why the set at a path's target has to go there. `linked` tells whether the last
    file was staged by a hard link, which takes no room."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        book: SourceBook,
        yard: HotYard,
        patience: Retries,
        failures: FailureDesk,
        growth: GrowthDesk,
    ) -> None:
        self._context, self._events = context, context.events
        self._book, self._yard, self._patience = book, yard, patience
        self.failures, self.growth = failures, growth
        self.convicted: dict[str, dict[str, Any]] = {}
        self.invalid_sets: dict[str, str] = {}
        pipeline = context.pipeline
        self._fetched = pipeline.dataset.source.kind != "folder"
        self.linked = self._fetched and pipeline.warm is None  # until a link is refused
        self._disputed: dict[str, Receipt] = {}
        self._reached: dict[tuple[str, str], tuple[int, int]] = {}  # row group and row, by path and content
        self._doubts: dict[str, Doubt] = {}  # deaths that the disk may explain, by path
        self._xxh3: dict[str, str] = {}  # of the files staged since the start, by their sha256

    def disputes(self, receipts: Mapping[str, Receipt]) -> list[str]:
        """The paths whose receipt was disputed and not written again since."""
        return [path for path, receipt in self._disputed.items() if receipts.get(path) is receipt]

    def staged_xxh3(self, source: Source) -> str:
        """The xxh3_128 of the source's file on hot; empty where it was staged before this daemon started."""
        return self._xxh3.get(source.sha256, "")

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """Note how far the worker came: what it was reading last is what may be blamed."""
        if message["kind"] == "preflight":
            job.facts["row_group"] = FOOTER
        elif "row_groups" in message:
            job.facts["row_group"] = message["row_groups"]
        elif "row_group" in message:
            job.facts["row_group"] = message["row_group"]
        if message["kind"] == "commit":
            job.facts["reached"] = (message["row_group"], message["row"])
            self.failures.disks.works(job.kind)
        if message.get("phase") in ("check_engine", "encode"):
            job.facts["encoding"] = True
        if message["kind"] == "room":
            self.growth.hear(job, message)
        if message["kind"] == "engine":
            self._without_fast(self._book.sources[job.subject], str(message["reason"]))

    def ended(self, job: Job[Any], ended: WorkerExit, receipt: Receipt | None, key: str | None) -> None:
        """Judge the end of a worker on a source and act on it."""
        source = self._book.sources[job.subject]
        verdict = self.failures.judge(job, ended)
        result = verdict.fields or {}
        further = self._credit(source, job.facts.get("reached", (0, 0)))
        match verdict.kind:
            case "done":
                self._done(job, source, result, key)
            case "bad":
                self.convicted[source.path] = {name: result[name] for name in FLAW_FIELDS}
            case "changed":
                self.dispute(source, receipt)
            case "outgrown":
                self._outgrown(job, source)
            case "recycled":
                self._recycled(job, source, further=further)
            case "disk_full":
                self._patience.retry_in(source.path, LOOK_S)
                self._yard.look_soon()  # how much of it is built already
                self.failures.disks.failed(job.kind, source.path, verdict.reason)
            case "out_of_memory" | "over_memory":
                self._short_of_memory(job, source, verdict)
            case "killed":  # by hand, or with the daemon's own stop: nobody is to blame
                wait_s = max(RETRY_S, self._patience.failed(source.path))  # longer, if it goes on and on
                self._try_again(job, source, verdict.reason, wait_s=wait_s)
            case "died":
                (self._doubt if verdict.doubtful else self._died)(job, source, verdict.reason)
            case "stalled" | "silent" if job.facts.get("encoding") and self._fast_for(source):
                self._died(job, source, verdict.reason)
            case "storage":  # what it read may be gone: a look brings the record in line
                self._yard.look_soon()
                self._try_again(job, source, verdict.reason)
            case _:
                self._try_again(job, source, verdict.reason)

    def _credit(self, source: Source, reached: tuple[int, int]) -> bool:
        """Forget failures where a worker came further than any before; else it could go round for ever."""
        content = (source.path, source.sha256)
        further = reached > self._reached.get(content, (0, 0))
        if further:
            self._reached[content] = reached
            self._patience.succeeded(source.path)
        return further

    def _outgrown(self, job: Job[Any], source: Source) -> None:
        self._yard.look_soon()  # its partial set is gone
        self._reached.pop((source.path, source.sha256), None)
        if (finding := self.growth.refused(job, source)) is not None:
            self.convicted[source.path] = finding

    def _recycled(self, job: Job[Any], source: Source, *, further: bool) -> None:
        """A fresh worker goes on at once; one that never came further reads in smaller batches first."""
        self._events.record("worker_recycled", level="debug", path=source.path, further=further)
        if not further:
            self.failures.memory.recycled_in_vain(job)
            self._try_again(job, source, "its worker outgrew shard.memory.soft before it could commit")

    def _short_of_memory(self, job: Job[Any], source: Source, verdict: Verdict) -> None:
        finding = self.failures.memory.failed(job, verdict.kind, verdict.reason)
        if finding is not None:
            self.convicted[source.path] = {name: finding[name] for name in FLAW_FIELDS}
        self._try_again(job, source, verdict.reason, wait_s=RETRY_S)

    def _doubt(self, job: Job[Any], source: Source, reason: str) -> None:
        """A page of a mapped file could not be read: its disk may be away, or the file, as well as bad."""
        self._doubts[source.path] = Doubt(job, source.sha256, reason, time.monotonic())
        self._yard.look_soon()
        self._try_again(job, source, reason, wait_s=DOUBT_S)

    def settle_doubts(self) -> None:
        """Count the deaths whose file still lies on a hot disk that answers, by a look begun after them."""
        for path, doubt in list(self._doubts.items()):
            source = self._book.sources.get(path)
            stays = (
                source is not None
                and source.sha256 == doubt.sha256
                and source.state in ("staged", "building")
            )
            if source is None or not stays or not self._yard.known:
                del self._doubts[path]  # gone, or its disk is: no fault of the file
            elif self._yard.looked_from > doubt.since and path not in self.failures.busy:
                del self._doubts[path]
                self._book.write(self._blame(doubt.job, source, doubt.reason))

    def _done(self, job: Job[Any], source: Source, result: Mapping[str, Any], key: str | None) -> None:
        match (job.kind, result.get("status")):
            case ("stage", "missing"):
                return self._missing(job, source)
            case ("stage", "unavailable"):
                return self._try_again(job, source, str(result["reason"]))
            case ("stage", "staged"):
                if result["how"] != "kept":
                    self.linked = result["how"] == "link"
                self._xxh3[source.sha256] = str(result["xxh3"])
                self._book.write(source.moved("staged", attempts=0, deaths=(), reason=None))
            case ("build", "target_invalid"):
                return self.set_invalid(source, str(result["reason"]))
            case ("build", "published" | "existed"):
                self.failures.memory.succeeded(source.path)
                self._xxh3.pop(source.sha256, None)
                self._proven(source, str(key), result["books"], result["manifest_sha256"])
            case ("prove", _):
                return self._take_proof(job, source, str(key), result["proofs"][0])
            case ("quarantine", _) if "set" in job.facts:
                del self.invalid_sets[source.path]
                self._yard.published.discard(job.facts["set"])
            case ("quarantine", _):
                self._quarantined(source, str(result["folder"]))
            case ("release", _):
                self._book.write(source.moved("released"))
                self._events.record("source_released", path=source.path)
            case (_, status):
                return self._try_again(
                    job, source, f"its worker ended as {status!r}, which means nothing here"
                )
        return self._patience.succeeded(source.path)

    def _without_fast(self, source: Source, reason: str) -> None:
        self._book.write(replace(source, engine=HF_TOKENIZERS))
        self._tell_refused(source, reason)

    def _tell_refused(self, source: Source, reason: str) -> None:
        self._events.record(
            "engine_refused", level="warning", path=source.path, used=HF_TOKENIZERS, reason=reason
        )

    def _take_proof(self, job: Job[Any], source: Source, key: str, proof: Mapping[str, Any]) -> None:
        if proof["verdict"] == "proven":
            self._proven(source, key, proof["books"], proof["manifest_sha256"])
            self._patience.succeeded(source.path)
        elif proof["verdict"] == "invalid":
            self.set_invalid(source, str(proof["reason"]))
        else:
            self._try_again(job, source, f"its shard set cannot be read: {proof['reason']}")

    def _proven(self, source: Source, key: str, books: Mapping[str, Any], manifest_sha256: str) -> None:
        self._yard.published.add(key[:16])
        if self._book.sources.owner(source.sha256) not in (None, source.path):
            return  # never two owners of one set: the schedule makes a duplicate of this one
        proven = source.moved(
            "proven", key=key, books=books, manifest_sha256=manifest_sha256, reason=None, deaths=()
        )
        self._book.write(proven)
        self._yard.discard_build(proven)
        self._events.record(
            "source_proven",
            path=source.path,
            key=key[:16],
            documents=books["documents"],
            tokens=books["tokens"],
            dropped=sum((books["dropped"] or {}).values()),  # not known of what was imported
        )

    def set_invalid(self, source: Source, reason: str) -> None:
        """The set at the source's target is wrong: it goes into quarantine, once no record claims it."""
        self.invalid_sets[source.path] = reason
        self._events.record("shard_set_invalid", level="error", path=source.path, reason=reason)
        if source.state in PUBLISHED:
            self._yard.gone(source, f"its shard set on hot is wrong: {reason}")

    def _quarantined(self, source: Source, folder: str) -> None:
        finding = self.convicted[source.path]
        self._book.write(source.moved("quarantined", reason=finding["reason"], column=finding.get("column")))
        del self.convicted[source.path]
        self._yard.discard_build(source)
        self._events.record("source_quarantined", level="warning", path=source.path, folder=folder, **finding)

    def dispute(self, source: Source, receipt: Receipt | None) -> None:
        """The content is not what the receipt says: the download watchdog is asked to look again.

        A receipt of other content was written since: nobody has to be asked, and nobody would answer.
        """
        self._dispute(source, receipt)
        self._patience.failed(source.path)
        self._yard.discard_build(source)
        self._book.renew(source, "its content is not what its receipt says", level="warning")

    def _missing(self, job: Job[Any], source: Source) -> None:
        """A folder's file may come back; one that was fetched is fetched again."""
        if self._fetched:
            self._dispute(source, job.facts["receipt"])
        self._try_again(job, source, "the source file is not there")

    def _dispute(self, source: Source, receipt: Receipt | None) -> None:
        speaks_of_it = receipt is not None and receipt.sha256 == source.sha256
        if receipt is not None and speaks_of_it and self._disputed.get(source.path) is not receipt:
            args = {"path": source.path, "sha256": source.sha256}
            file_request(self._context.layout, DOWNLOAD_WATCHDOG, "dispute", args)
            self._disputed[source.path] = receipt

    def given_up(self, receipt: Receipt) -> None:
        """The file could not be fetched, or is rotten: its source is quarantined, all else goes on.

        There is nothing to set aside: the finding alone is written, for people to see and to release.
        """
        dataset, path = receipt.dataset, receipt.path
        source = self._book.sources.get(path) or Source(dataset, path, receipt.size, receipt.sha256)
        reason = SOURCE_ROTTEN if receipt.rotten else DOWNLOAD_FAILED
        finding = {"reason": reason, "row_group": None, "column": None, "detail": _NOTHING_COMES[reason]}
        self._book.write(source.moved("quarantined", reason=reason, column=None))
        about = {"path": path, "sha256": source.sha256, **finding}
        directory = self._context.layout.quarantine
        folder = open_folder(directory, "parquet", record_name(dataset, path), about)
        self._events.record("source_quarantined", level="warning", path=path, folder=str(folder), **finding)

    def _died(self, job: Job[Any], source: Source, reason: str) -> None:
        self._try_again(job, self._blame(job, source, reason), reason)

    def _blame(self, job: Job[Any], source: Source, reason: str) -> Source:
        """The source with this death on its account; twice at one place convicts it."""
        if job.kind == "build" and job.facts.get("encoding") and self._fast_for(source):
            # The engine may have died of the text: the reference shows whether the file is to blame.
            self._tell_refused(source, reason)
            return replace(source, engine=HF_TOKENIZERS)
        group = job.facts.get("row_group")
        if group is not None:
            source = replace(source, deaths=(*source.deaths, int(group)))
        guilty = convicted(source.deaths)
        if guilty is not None:
            self.convicted[source.path] = {
                "reason": "worker_died",
                "row_group": None if guilty == FOOTER else guilty,
                "column": None,
                "detail": f"{reason}; twice at the same place",
            }
        return source

    def _fast_for(self, source: Source) -> bool:
        configured = self._context.pipeline.tokenizer.engine
        return HF_TOKENIZERS not in (configured, source.engine)

    def _try_again(self, job: Job[Any], source: Source, reason: str, *, wait_s: float | None = None) -> None:
        """Wait longer each time, or always `wait_s` seconds."""
        if wait_s is None:
            wait_s = self._patience.failed(source.path)
        else:
            self._patience.retry_in(source.path, wait_s)
        if job.kind == "build":
            source = replace(source, attempts=source.attempts + 1)
        if source != self._book.sources[source.path]:
            self._book.write(source)
        self._events.record(
            f"{job.kind}_failed",
            level="warning",
            path=source.path,
            reason=reason,
            row_group=job.facts.get("row_group"),
            retry_in_s=round(wait_s, 1),
        )


def paused(activity: str) -> str:
    """The word under which a whole activity waits for room on the disk."""
    return f"/{activity}"
