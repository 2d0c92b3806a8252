"""What the download watchdog shows of itself: status, metrics and a terminal's last line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stoker.corpus.http.retry_rules import COUNTED, TRANSIENT
from stoker.kit.daemon import DaemonContext
from stoker.kit.metrics import Metrics
from stoker.observe.progress import download_parts
from stokerd.common.progress import ProgressTeller

if TYPE_CHECKING:
    from stokerd.download.folder import FolderSource
    from stokerd.download.remote import RemoteSource

SHOW_EVERY_S = 0.3
PAUSES = ("disk", "source", "state", "server")


class Meters:
    """The watchdog's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        gauge, counter = metrics.gauge, metrics.counter
        self.files = gauge("download_files", "Source files by state.", ("state",))
        self.verified = gauge("download_verified_bytes", "Bytes of all verified files.")
        self.hashed = counter("download_hashed_bytes_total", "Bytes hashed since the start.")
        self.progress = gauge(
            "download_last_progress_timestamp_seconds", "When a source file was last read from."
        )
        self.watched = gauge(
            "download_source_watched", "1 while changes in the source folder are told, 0 while it is polled."
        )
        self.available = gauge("download_source_available", "1 while the source can be seen.")
        self.complete = gauge("download_complete", "1 when every file of the pinned listing is vouched for.")
        # Of a source that is fetched
        self.fetched = counter("download_fetched_bytes_total", "Bytes that came over the network.")
        self.durable = counter("download_durable_bytes_total", "Fetched bytes made durable.")
        self.refetched = counter(
            "download_refetched_bytes_total",
            "Fetched bytes that were dropped: other, rotten or wrong content.",
        )
        self.retries = counter("download_retries_total", "Attempts that failed.", ("class",))
        self.mismatches = counter("download_mismatches_total", "Files whose content was wrong.")
        self.restarts = counter("download_worker_restarts_total", "Fetch workers that died or hung.")
        self.given_up = gauge("download_given_up", "Files that could not be brought.")
        self.rate = gauge("download_rate_bytes_per_second", "Bytes made durable, over the last minute.")
        self.paused = gauge("download_paused", "1 while nothing new is fetched.", ("reason",))
        self.retry_causes = (*TRANSIENT, *COUNTED)
        for cause in self.retry_causes:
            self.retries.labels(cause)
        for reason in PAUSES:
            self.paused.labels(reason).set(0)


class StatusBoard:
    """Shows a source now and then; `due` is when to show what was passed over, monotonic seconds."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._progress = ProgressTeller(context, download_parts)
        self._shown_at, self._is_due = -SHOW_EVERY_S, False

    @property
    def due(self) -> float:
        return self._shown_at + SHOW_EVERY_S if self._is_due else self._context.show_due

    def show(self, source: FolderSource | RemoteSource, *, at_once: bool = False) -> None:
        """Set the gauges, write the status snapshot, feed the service manager's watchdog."""
        now = time.monotonic()
        self._is_due = not at_once and now < self._shown_at + SHOW_EVERY_S
        if self._is_due:
            return
        self._shown_at = now
        counts, more, trouble, meters = source.counts(), source.status(), source.trouble, source.meters
        complete = source.effects.is_complete
        for state, count in counts.items() if source.seen else ():
            meters.files.labels(state).set(count)
        meters.verified.set(source.state.verified_bytes)
        meters.available.set(0 if trouble else 1)
        meters.watched.set(1 if more.get("polling") == "" and not trouble else 0)
        meters.complete.set(1 if complete else 0)
        status = {
            "source": source.shown,
            "looked": source.seen,
            "files": dict(counts),
            "verified_bytes": source.state.verified_bytes,
            "complete": complete,
            "trouble": trouble,
            **more,
        }
        self._progress.tell(status)
        self._context.beat(status, trouble or ", ".join(download_parts(status)))
