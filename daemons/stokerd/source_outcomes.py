"""What becomes of a source when a worker on it ends: the records, the findings, the next try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.receipts import Receipt
from stoker.corpus.sources import PUBLISHED, Source
from stoker.corpus.verdict import convicted, judge
from stoker.kit.daemon import DaemonContext
from stoker.kit.worker import WorkerExit
from stoker.store.errors import StorageError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import file_request
from stokerd.crew import Job, Patience
from stokerd.hot_yard import HotYard
from stokerd.shard_tasks import FLAW_FIELDS
from stokerd.source_book import SourceBook
from stokerd.yard import TRIES_ONCE

FOOTER = -1  # stands for the row group where the footer is what was being read


class SourceOutcomes:
    """Takes the ends of workers; `convicted` are the findings against paths that wait for quarantine,
    `invalid_sets` the reasons why the set at a path's target has to go there. `linked` tells whether the last
    file was staged by a hard link, which takes no room."""

    def __init__(self, context: DaemonContext, book: SourceBook, yard: HotYard, patience: Patience) -> None:
        self._context, self._events = context, context.events
        self._book, self._yard, self._patience = book, yard, patience
        self.convicted: dict[str, dict[str, Any]] = {}
        self.invalid_sets: dict[str, str] = {}
        self.linked = False
        self._disputed: dict[str, Receipt] = {}
        self._reached: dict[tuple[str, str], tuple[int, int]] = {}  # row group and row, by path and content

    def disputes(self, receipts: Mapping[str, Receipt]) -> list[str]:
        """The paths whose receipt was disputed and not written again since."""
        return [path for path, receipt in self._disputed.items() if receipts.get(path) is receipt]

    def hear(self, job: Job, message: Mapping[str, Any]) -> None:
        """Note how far the worker came: what it was reading last is what may be blamed."""
        if message["kind"] == "preflight":
            job.note["row_group"] = FOOTER
        elif "row_groups" in message:
            job.note["row_group"] = message["row_groups"]
        elif "row_group" in message:
            job.note["row_group"] = message["row_group"]
        if message["kind"] == "commit":
            job.note["reached"] = (message["row_group"], message["row"])

    def ended(self, job: Job, ended: WorkerExit, receipt: Receipt | None, key: str | None) -> None:
        """Judge the end of a worker on a source and act on it."""
        source = self._book.sources[job.subject]
        verdict = judge(ended)
        result = verdict.fields or {}
        self._credit(source, job.note.get("reached", (0, 0)))
        match verdict.kind:
            case "done":
                self._done(job, source, result, key)
            case "bad":
                self.convicted[source.path] = {name: result[name] for name in FLAW_FIELDS}
            case "changed":
                self.dispute(source, receipt)
            case "disk_full":
                self._pause(job.activity, verdict.reason)
            case "died":
                self._died(job, source, verdict.reason)
            case "storage" | "again":
                self._try_again(job, source, verdict.reason)

    def _credit(self, source: Source, reached: tuple[int, int]) -> None:
        """Forget failures where a worker came further than any before; else it could go round for ever."""
        content = (source.path, source.sha256)
        if reached > self._reached.get(content, (0, 0)):
            self._reached[content] = reached
            self._patience.succeeded(source.path)

    def _done(self, job: Job, source: Source, result: Mapping[str, Any], key: str | None) -> None:
        match (job.activity, result.get("status")):
            case ("stage", "missing"):
                return self._try_again(job, source, "the source file is not there")
            case ("stage", _):
                if result["how"] != "kept":
                    self.linked = result["how"] == "link"
                self._book.write(source.moved("staged", attempts=0, deaths=(), reason=None))
            case ("sample", _):
                self._sampled(source, str(result["engine"]), str(result.get("reason") or ""))
            case ("build", "target_invalid"):
                return self.set_invalid(source, str(result["reason"]))
            case ("build", _):
                self._proven(source, str(key), result["books"], result["manifest_sha256"])
            case ("prove", _):
                return self._take_proof(job, source, str(key), result["proofs"][0])
            case ("quarantine", _) if "set" in job.note:
                del self.invalid_sets[source.path]
                self._yard.published.discard(job.note["set"])
            case ("quarantine", _):
                self._quarantined(source, str(result["folder"]))
            case ("release", _):
                self._book.write(source.moved("released"))
                self._events.record("source_released", path=source.path)
        return self._patience.succeeded(source.path)

    def _sampled(self, source: Source, engine: str, reason: str) -> None:
        self._book.write(replace(source, engine=engine))
        if reason:
            self._events.record(
                "engine_refused", level="warning", path=source.path, used=engine, reason=reason
            )

    def _take_proof(self, job: Job, source: Source, key: str, proof: Mapping[str, Any]) -> None:
        if proof["verdict"] == "proven":
            self._proven(source, key, proof["books"], proof["manifest_sha256"])
            self._patience.succeeded(source.path)
        elif proof["verdict"] == "invalid":
            self.set_invalid(source, str(proof["reason"]))
        else:
            self._try_again(job, source, f"its shard set cannot be read: {proof['reason']}")

    def _proven(self, source: Source, key: str, books: Mapping[str, Any], manifest_sha256: str) -> None:
        self._yard.published.add(key[:16])
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
            dropped=sum(books["dropped"].values()),
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
        """The content is not what the receipt says: the download watchdog is asked to look again."""
        if receipt is not None and self._disputed.get(source.path) is not receipt:
            args = {"path": source.path, "sha256": source.sha256}
            file_request(self._context.layout, DOWNLOAD_WATCHDOG, "dispute", args)
            self._disputed[source.path] = receipt
        self._patience.failed(source.path)
        self._yard.discard_build(source)
        self._book.renew(source, "its content is not what its receipt says", level="warning")

    def _died(self, job: Job, source: Source, reason: str) -> None:
        group = job.note.get("row_group")
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
        self._try_again(job, source, reason)

    def _try_again(self, job: Job, source: Source, reason: str) -> None:
        wait_s = self._patience.failed(source.path)
        if job.activity == "build":
            source = replace(source, attempts=source.attempts + 1)
        if source != self._book.sources[source.path]:
            self._book.write(source)
        self._events.record(
            f"{job.activity}_failed",
            level="warning",
            path=source.path,
            reason=reason,
            row_group=job.note.get("row_group"),
            retry_in_s=round(wait_s, 1),
        )

    def _pause(self, activity: str, reason: str) -> None:
        wait_s = self._patience.failed(paused(activity))
        self._yard.look_soon()  # how much of it is built already
        self._events.record(
            "disk_full", level="error", activity=activity, reason=reason, retry_in_s=round(wait_s, 1)
        )
        if self._context.once and self._patience.failures(paused(activity)) >= TRIES_ONCE:
            raise StorageError(f"{activity}: {reason}")


def paused(activity: str) -> str:
    """The word under which a whole activity waits for room on the disk."""
    return f"/{activity}"
