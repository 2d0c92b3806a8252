"""The download watchdog: keeps a verified receipt for every source file.

It lists the source in a worker, so that a dead mount or a silent server hangs only the worker, fetches files
without a receipt, and writes receipts and the listing. A folder is read in place and never written; files of
a hub or of URLs are fetched into the landing.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Mapping
from typing import Any

from stoker.corpus.fetch.decide import Change, accepted, disputed
from stoker.kit.daemon import DaemonContext
from stoker.kit.metrics import Figure
from stoker.kit.workers.pool import WorkerPool
from stoker.observe.processes import FETCHER, process_figures
from stoker.observe.progress import ProgressTeller, download_parts
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.requests import Request
from stokerd.common.loop import NO_DATA, RequestBox, repeat
from stokerd.common.observer import Observer
from stokerd.download.fetcher import FETCH, most_rss_bytes
from stokerd.download.source import Source
from stokerd.download.state import TRY_CLASSES, Work

LONGEST_WAIT_S = 5.0
REASONS = ("disk", "source", "state", "server")
FIGURES = (
    Figure("download_files", "Source files by state.", "by_state.*", {"state": ()}),
    Figure("download_verified_bytes", "Bytes of all verified files.", "verified_bytes"),
    Figure("download_hashed_bytes_total", "Bytes hashed since the start.", "hashed_bytes"),
    Figure(
        "download_last_progress_timestamp_seconds",
        "Unix time at which a file was last read from.",
        "progress_at",
    ),
    Figure("download_source_watched", "1 while changes in the source folder are noticed at once.", "watched"),
    Figure("download_source_available", "1 while the source can be seen.", "available"),
    Figure("download_complete", "1 when every file of the pinned listing is vouched for.", "complete"),
    Figure("download_eta_seconds", "Seconds until every source file is here.", "eta_s"),
    # Only of a source that is fetched
    Figure("download_fetched_bytes_total", "Bytes that came over the network.", "fetched_bytes"),
    Figure("download_durable_bytes_total", "Fetched bytes made durable.", "durable_bytes"),
    Figure("download_refetched_bytes_total", "Fetched bytes that were dropped.", "counted.refetched_bytes"),
    Figure(
        "download_retries_total", "Attempts to fetch that failed.", "failed_tries.*", {"class": TRY_CLASSES}
    ),
    Figure("download_mismatches_total", "Files whose content was wrong.", "counted.mismatches"),
    Figure("download_worker_restarts_total", "Fetch workers that died or hung.", "counted.restarts"),
    Figure("download_given_up", "Files that could not be fetched.", "files.given_up"),
    Figure(
        "download_rate_bytes_per_second",
        "Bytes each second made durable, or hashed in a folder.",
        "rate_bytes_per_second",
    ),
    Figure("download_paused", "1 while nothing new is fetched.", "is_paused.*", {"reason": REASONS}),
    Figure("config_download_stall_seconds", "Most seconds without a byte of a transfer, as set.", "stall_s"),
    *process_figures(DOWNLOAD_WATCHDOG),
)


def run(context: DaemonContext) -> int:
    """Watches the source until asked to stop; with --once until every file has its receipt."""
    if not context.pipeline.has_data:
        context.ready(NO_DATA)
        return 0
    return DownloadWatch(context).run()


class DownloadWatch:
    def __init__(self, context: DaemonContext) -> None:
        self.context, self.layout = context, context.layout
        pipeline = context.pipeline
        self.pool = WorkerPool[Work](
            f"{self.layout.state}:{DOWNLOAD_WATCHDOG}",
            context.waiter,
            most_rss_bytes=most_rss_bytes(pipeline.download.files_at_once),
        )
        self.requests = RequestBox(self.layout, DOWNLOAD_WATCHDOG, context.events)
        kind = pkgutil.resolve_name(pipeline.dataset.source.spec.source)
        self.datasets: dict[str, Source[Any]] = {pipeline.dataset.name: kind(context, self.pool)}
        self.handlers = dict.fromkeys(("dispute", "accept", "fetch"), self.answer)
        self.progress, self.observer = ProgressTeller(context, download_parts), Observer(context)
        context.metrics.show(FIGURES, {"by_state": dict.fromkeys(self.source.counts())})

    @property
    def source(self) -> Source[Any]:
        """The one dataset: requests are about its paths, status and metrics show it."""
        (source,) = self.datasets.values()
        return source

    def run(self) -> int:
        unfinished = "not everything is here; start it again to continue"
        try:
            return repeat(self.context, self.pool, self.start, self.cycle, unfinished=unfinished)
        finally:  # the last status and its reason stay visible
            self.show()
            self.context.log.footer.clear()

    def start(self) -> None:
        """Subscribes to requests and the demand."""
        for folder in (self.layout.requests(DOWNLOAD_WATCHDOG), self.layout.demand.parent):
            self.context.waiter.watch(folder)
        self.context.ready(f"looking at {self.source.shown}")

    def cycle(self) -> int | None:
        """Observes, acts, reports, waits, hears; returns the exit code when --once is finished."""
        self.requests.answer(self.handlers)
        sources = self.datasets.values()
        for source in sources:
            self.reconcile(source)
            source.refresh()
            source.bring()
            source.keep_listing()
        self.show()
        if self.context.once and all(source.is_drained() for source in sources):
            return self.end()
        self.wait()
        for job, messages, ended in self.pool.hear():
            source = self.datasets[job.facts.dataset]
            for message in messages:
                source.hear(job, message)
            if ended is not None:
                source.ended(job, ended)
        return None

    def answer(self, request: Request) -> Mapping[str, Any]:
        """Carries out a request about a path; returns the answer."""
        path, by = str(request.args.get("path")), request.by
        sha256 = None if (given := request.args.get("sha256")) is None else str(given)
        source, receipt = self.source, self.source.state.receipts.get(path)
        match request.verb:
            case "dispute":
                change = disputed(receipt, path, sha256, by)
            case "accept":
                change = accepted(receipt, path, sha256, by)
            case _:
                source.state.try_again(path)
                change = source.fetched_again(path, sha256, by)
        return source.apply(change)

    def reconcile(self, source: Source[Any]) -> None:
        """Removes files that the stage-shard loop no longer needs, fetches again those it misses.

        Skipped while neither its demand nor a receipt changed.
        """
        state, demand = source.state, source.state.demand()
        before, changes, was_seen = state.reconciled
        if demand is before and (changes, was_seen) == (state.changes, source.seen):
            return
        for path, unneeded in demand.unneeded.items():
            self.apply(source, "release", path, unneeded.sha256, source.released(path, unneeded))
        for path, sha256 in demand.missed.items():
            if before.missed.get(path) != sha256:
                state.try_again(path)
            self.apply(source, "fetch", path, sha256, source.fetched_again(path, sha256, STAGE_SHARD))
        state.reconciled = (demand, state.changes, source.seen)

    def apply(self, source: Source[Any], verb: str, path: str, sha256: str, change: Change) -> None:
        """Applies a wish of the stage-shard loop; records a refusal once."""
        source.apply(change)
        # Before the source is listed, Stoker cannot know which files can be fetched.
        if change.refusal and (verb == "release" or source.seen):
            source.warn_once(f"landing_{verb}_refused", path, change.refusal, sha256)

    def show(self) -> None:
        """Shows the status to `stoker status`, the metrics and the terminal."""
        source, state, counts = self.source, self.source.state, self.source.counts()
        status = {
            "source": source.shown,
            "looked": source.seen,
            "files": counts if source.seen else {},
            "by_state": counts if source.seen else dict.fromkeys(counts),
            "verified_bytes": state.verified_bytes,
            "complete": source.written is not None and source.written.complete,
            "trouble": source.trouble,
            "foreign_files": source.unmanaged_files,
            "available": not source.trouble,
            "is_paused": dict.fromkeys(REASONS, False),
            "counted": dict(state.counted),
            "failed_tries": dict(state.failed_tries),
            "progress_at": state.progress_at or None,
            "stall_s": self.context.pipeline.download.stall,
            **dict.fromkeys(("hashed_bytes", "fetched_bytes", "durable_bytes", "watched"), 0),
            **source.status(),
        }
        status |= self.observer.sample(dict.fromkeys(self.pool.running(FETCH.module), FETCHER), status=status)
        self.progress.tell(status, source.trouble or ", ".join(download_parts(status)))

    def wait(self) -> None:
        """Sleeps until a worker, a request or a signal arrives, or a timer is due."""
        now = time.monotonic()
        dues = (source.next_due(now) for source in self.datasets.values())
        due = min(now + LONGEST_WAIT_S, self.context.show_due, *dues)
        self.pool.wait(max(0.0, due - now))

    def end(self) -> int:
        """Logs the summary of --once; returns its exit code."""
        self.source.keep_listing()
        self.context.log.footer.clear()
        text, code = self.source.summary()
        self.context.log.info("drained", message=text)
        return code
