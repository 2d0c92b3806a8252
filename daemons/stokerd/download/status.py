"""The download watchdog's status, metrics and terminal line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.kit.metrics import Figure

if TYPE_CHECKING:
    from stokerd.download.folder import FolderSource
    from stokerd.download.remote import RemoteSource

PAUSES = ("disk", "source", "state", "server")


FIGURES = (
    Figure("download_files", "Source files by state.", "files.*", "state"),
    Figure("download_verified_bytes", "Bytes of all verified files.", "verified_bytes"),
    Figure("download_hashed_bytes_total", "Bytes hashed since the start.", "hashed_bytes"),
    Figure("download_last_progress_timestamp_seconds", "When a file was last read from.", "progress_at"),
    Figure("download_source_watched", "1 while changes in the source folder are told.", "watched"),
    Figure("download_source_available", "1 while the source can be seen.", "available"),
    Figure("download_complete", "1 when every file of the pinned listing is vouched for.", "complete"),
    # Only of a source that is fetched
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


def status_of(source: FolderSource | RemoteSource) -> dict[str, Any]:
    """Returns the source's state for `stoker status` and the metrics."""
    state, trouble = source.state, source.trouble
    return {
        "source": source.shown,
        "looked": source.seen,
        "files": source.counts() if source.seen else {},
        "verified_bytes": state.verified_bytes,
        "complete": source.effects.is_complete,
        "trouble": trouble,
        "foreign_files": source.foreign_files,
        "available": not trouble,
        "is_paused": dict.fromkeys(PAUSES, False),
        "counted": dict(state.counted),
        "failed_tries": dict(state.failed_tries),
        "progress_at": state.progress_at,
        **dict.fromkeys(("hashed_bytes", "fetched_bytes", "durable_bytes", "watched"), 0),
        **source.status(),
    }
