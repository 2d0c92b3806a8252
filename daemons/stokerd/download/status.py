"""What the download watchdog shows of itself: status, metrics and a terminal's last line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.corpus.http.retry_rules import COUNTED, TRANSIENT
from stoker.kit.daemon import DaemonContext
from stoker.observe.progress import DONE, download_parts
from stokerd.common.progress import ProgressTeller
from stokerd.download.receipt_store import ReceiptBook

if TYPE_CHECKING:
    from stokerd.download.source_kind import SourceKind


class DownloadBoard:
    """Keeps the gauges."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._teller = ProgressTeller(context, download_parts)
        metrics = context.metrics
        self._files = metrics.gauge("download_files", "Source files by state.", ("state",))
        self._verified = metrics.gauge("download_verified_bytes", "Bytes of all verified files.")
        self._hashed = metrics.counter("download_hashed_bytes_total", "Bytes hashed since the start.")
        self._progress = metrics.gauge(
            "download_last_progress_timestamp_seconds", "When a source file was last read from."
        )
        self._watched = metrics.gauge(
            "download_source_watched", "1 while changes in the source folder are told, 0 while it is polled."
        )
        self._available = metrics.gauge("download_source_available", "1 while the source can be seen.")
        self._complete = metrics.gauge(
            "download_complete", "1 when every file of the pinned listing is vouched for."
        )

    def hashed(self, size: int) -> None:
        """A file of that many bytes was hashed."""
        self._hashed.inc(size)

    def progressed(self) -> None:
        """Bytes were read."""
        self._progress.set_to_current_time()

    def show(self, source: SourceKind, book: ReceiptBook) -> None:
        """Set the gauges, write the status snapshot, feed the service manager's watchdog."""
        counts, more, trouble = source.counts(), source.status(), source.trouble
        for state, count in counts.items() if source.seen else ():
            self._files.labels(state).set(count)
        self._verified.set(book.verified_bytes)
        self._available.set(0 if trouble else 1)
        self._watched.set(1 if more.get("polling") == "" and not trouble else 0)
        complete = source.listing is not None and source.listing.complete
        self._complete.set(1 if complete else 0)
        status = {
            "source": source.shown,
            "looked": source.seen,
            "files": dict(counts),
            "verified_bytes": book.verified_bytes,
            "complete": complete,
            "trouble": trouble,
            **more,
        }
        self._teller.tell(status)
        self._context.beat(status, trouble or _text(status))


class FetchGauges:
    """What is counted of transfers."""

    def __init__(self, context: DaemonContext) -> None:
        metrics = context.metrics
        self._fetched = metrics.counter("download_fetched_bytes_total", "Bytes that came over the network.")
        self._durable = metrics.counter("download_durable_bytes_total", "Fetched bytes made durable.")
        self._again = metrics.counter(
            "download_refetched_bytes_total",
            "Fetched bytes that were dropped: other, rotten or wrong content.",
        )
        self._retries = metrics.counter("download_retries_total", "Attempts that failed.", ("class",))
        for kind in (*TRANSIENT, *COUNTED):
            self._retries.labels(kind)
        self._mismatches = metrics.counter("download_mismatches_total", "Files whose content was wrong.")
        self._restarts = metrics.counter("download_worker_restarts_total", "Fetch workers that died or hung.")
        self._given_up = metrics.gauge("download_given_up", "Files that could not be brought.")
        self._rate = metrics.gauge(
            "download_rate_bytes_per_second", "Bytes made durable, over the last minute."
        )
        self._paused = metrics.gauge("download_paused", "1 while nothing new is fetched.", ("reason",))
        for reason in ("disk", "source", "state", "server"):
            self._paused.labels(reason).set(0)

    def moved(self, durable: int, received: int) -> None:
        """So many bytes more."""
        self._durable.inc(durable)
        self._fetched.inc(received)

    def dropped(self, size: int) -> None:
        """Bytes that have to come again."""
        self._again.inc(size)

    def retried(self, kind: str) -> None:
        """An attempt failed."""
        self._retries.labels(kind if kind in (*TRANSIENT, *COUNTED) else "other").inc()

    def mismatched(self) -> None:
        """Wrong content was set aside."""
        self._mismatches.inc()

    def restarted(self) -> None:
        """A fetch worker died or hung."""
        self._restarts.inc()

    def stands(self, rate: float, given_up: int, paused: Mapping[str, bool]) -> None:
        """How it stands."""
        self._rate.set(rate)
        self._given_up.set(given_up)
        for reason, is_paused in paused.items():
            self._paused.labels(reason).set(1 if is_paused else 0)


def _text(status: Mapping[str, Any]) -> str:
    if not status["looked"]:
        waits = status.get("paused") or status.get("waits")
        return f"looking at {status['source']}" + (f"; {waits}" if waits else "")
    counts = status["files"]
    here = sum(counts.get(state, 0) for state in DONE)
    left = sum(counts.values()) - here
    text = f"{counts['verified']:,} file{'s' * (counts['verified'] != 1)} verified, "
    text += "all there is" if status["complete"] else f"{left:,} to go"
    if counts.get("released"):
        text += f", {counts['released']} released"
    if counts.get("given_up"):
        text += f", {counts['given_up']} given up; stoker events says why"
    if counts.get("unproven"):
        text += f", {counts['unproven']} unproven"
    if counts.get("rotten"):
        text += f", {counts['rotten']} rotten; stoker audit says what to do"
    if waits := status.get("paused") or status.get("waits"):
        text += f"; {waits}"
    elif status.get("rate_bytes_per_second"):
        text += f", {status['rate_bytes_per_second'] / 1e6:,.1f} MB/s"
    return text
