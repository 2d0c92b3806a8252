"""What the download watchdog shows of itself: status and metrics, from receipts and the last look."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.corpus.listing import Listing
from stoker.corpus.receipts import Receipt
from stoker.kit.daemon import DaemonContext


class DownloadBoard:
    """Keeps the gauges."""

    def __init__(self, context: DaemonContext, root: str) -> None:
        self._context, self._root = context, root
        metrics = context.metrics
        self._files = metrics.gauge("download_files", "Source files by state.", ("state",))
        self._verified = metrics.total("download_verified_bytes_total", "Bytes of all verified files.")
        self._hashed = metrics.counter("download_hashed_bytes_total", "Bytes hashed since the start.")
        self._progress = metrics.gauge(
            "download_last_progress_timestamp_seconds", "When a source file was last read from."
        )
        self._watched = metrics.gauge(
            "download_source_watched", "1 while changes in the source folder are told, 0 while it is polled."
        )
        self._available = metrics.gauge("download_source_available", "1 while the source can be seen.")

    def hashed(self, size: int) -> None:
        """A file of that many bytes was hashed."""
        self._hashed.inc(size)

    def progressed(self) -> None:
        """Bytes were read."""
        self._progress.set_to_current_time()

    def show(
        self,
        counts: Mapping[str, int],
        receipts: Mapping[str, Receipt],
        listing: Listing | None,
        trouble: str,
        polling: str | None,
    ) -> None:
        """Set the gauges, write the status snapshot, feed the service manager's watchdog."""
        verified = sum(receipt.size for receipt in receipts.values() if receipt.state == "verified")
        for state, count in counts.items():
            self._files.labels(state).set(count)
        self._verified.set(verified)
        self._available.set(0 if trouble else 1)
        self._watched.set(1 if polling == "" and not trouble else 0)
        complete = listing is not None and listing.complete
        status = {
            "source": self._root,
            "files": dict(counts),
            "verified_bytes": verified,
            "complete": complete,
            "trouble": trouble,
            "polling": polling or "",
        }
        left = sum(counts.values()) - counts["verified"]
        text = f"{counts['verified']} files verified, {'all there is' if complete else f'{left} to go'}"
        self._context.beat(status, trouble or text)
