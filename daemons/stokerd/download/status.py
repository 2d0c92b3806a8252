"""What the download watchdog shows of itself: status, metrics and a terminal's last line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stoker.kit.daemon import DaemonContext
from stoker.kit.metrics import Figure
from stoker.observe.progress import download_parts
from stokerd.common.progress import ProgressTeller

if TYPE_CHECKING:
    from stokerd.download.folder import FolderSource
    from stokerd.download.remote import RemoteSource

SHOW_EVERY_S = 0.3
PAUSES = ("disk", "source", "state", "server")


FIGURES = (
    Figure("download_files", "Source files by state.", "files.*", "state"),
    Figure("download_verified_bytes", "Bytes of all verified files.", "verified_bytes"),
    Figure("download_hashed_bytes_total", "Bytes hashed since the start.", "hashed_bytes"),
    Figure("download_last_progress_timestamp_seconds", "When a file was last read from.", "progress_at"),
    Figure("download_source_watched", "1 while changes in the source folder are told.", "watched"),
    Figure("download_source_available", "1 while the source can be seen.", "available"),
    Figure("download_complete", "1 when every file of the pinned listing is vouched for.", "complete"),
    # Of a source that is fetched
    Figure("download_fetched_bytes_total", "Bytes that came over the network.", "fetched_bytes"),
    Figure("download_durable_bytes_total", "Fetched bytes made durable.", "durable_bytes"),
    Figure("download_refetched_bytes_total", "Fetched bytes that were dropped.", "counted.refetched_bytes"),
    Figure("download_retries_total", "Attempts that failed.", "failed_tries.*", "class"),
    Figure("download_mismatches_total", "Files whose content was wrong.", "counted.mismatches"),
    Figure("download_worker_restarts_total", "Fetch workers that died or hung.", "counted.restarts"),
    Figure("download_given_up", "Files that could not be brought.", "files.given_up"),
    Figure(
        "download_rate_bytes_per_second", "Bytes made durable, of a folder hashed.", "rate_bytes_per_second"
    ),
    Figure("download_paused", "1 while nothing new is fetched.", "is_paused.*", "reason"),
)


class StatusBoard:
    """Shows a source now and then; `due` is when to show what was passed over, monotonic seconds."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        context.metrics.figures = FIGURES
        self._progress = ProgressTeller(context, download_parts)
        self._shown_at, self._is_due = -SHOW_EVERY_S, False

    @property
    def due(self) -> float:
        return self._shown_at + SHOW_EVERY_S if self._is_due else self._context.show_due

    def show(self, source: FolderSource | RemoteSource, *, at_once: bool = False) -> None:
        """Write the status, which the metrics are read from, and feed the service manager's watchdog."""
        now = time.monotonic()
        self._is_due = not at_once and now < self._shown_at + SHOW_EVERY_S
        if self._is_due:
            return
        self._shown_at = now
        state, trouble = source.state, source.trouble
        status: dict[str, Any] = {
            "source": source.shown,
            "looked": source.seen,
            "files": source.counts() if source.seen else {},
            "verified_bytes": state.verified_bytes,
            "complete": source.effects.is_complete,
            "trouble": trouble,
            "available": not trouble,
            "is_paused": dict.fromkeys(PAUSES, False),
            "counted": dict(state.counted),
            "failed_tries": dict(state.failed_tries),
            "progress_at": state.progress_at,
            **dict.fromkeys(("hashed_bytes", "fetched_bytes", "durable_bytes", "watched"), 0),
            **source.status(),
        }
        self._progress.tell(status)
        self._context.beat(status, trouble or ", ".join(download_parts(status)))
