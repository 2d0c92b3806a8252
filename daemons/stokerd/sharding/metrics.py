"""The metrics of the stage-shard loop: what there is, and the values that a look at the state gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.corpus.quarantine.directory import KINDS
from stoker.kit.metrics import Metrics
from stokerd.sharding.activities.moves import MOVES
from stokerd.sharding.activities.recheck import VERDICTS

# Name, meaning, label.
GAUGES = (
    ("shard_sources", "Source files by state.", "state"),
    ("shard_documents", "Documents in proven shard sets.", "split"),
    ("shard_tokens", "Tokens in proven shard sets.", "split"),
    ("shard_imported_sets", "Imported shard sets, whose rows are not known.", "documents"),
    ("shard_dropped_rows", "Rows that filters dropped of what is in proven shard sets.", "reason"),
    ("shard_workers", "Workers at work.", "activity"),
    ("shard_workers_rss_bytes", "Resident memory of all workers together.", ""),
    ("shard_tokens_per_second", "Tokens committed, over the last half minute.", ""),
    ("shard_parquet_bytes_per_second", "Parquet brought to its end, over the last minute.", ""),
    ("shard_parquet_left_bytes", "Parquet that waits for its end.", ""),
    (
        "shard_last_progress_timestamp_seconds",
        "When a build last committed or a source last changed state.",
        "",
    ),
    ("shard_dataset_complete", "1 when every listed source came to its end.", ""),
    ("shard_sets", "Shard sets on hot, with a proven copy on warm, and on warm only.", "place"),
    ("shard_sets_bytes", "What those sets take.", "place"),
    ("shard_disk_free_bytes", "Free space as last measured.", "disk"),
    ("shard_disk_size_bytes", "Size of the file system.", "disk"),
    ("shard_disk_claimed_bytes", "What all daemons claim of the file system.", "disk"),
    ("shard_disk_up", "1 while the disk answers.", "disk"),
    ("shard_syncs_waiting", "Sets without a proven copy on warm.", ""),
    ("shard_sets_wanted_cold", "Sets that a run waits for and are not on hot.", ""),
    ("paused", "1 while work waits for this.", "reason"),
    ("staging_paused", "1 while the source folder does not answer.", ""),
    ("workers_stuck", "Killed workers that the kernel does not let go.", ""),
    ("worker_rss_bytes", "Resident memory of the largest worker of an activity.", "activity"),
    ("memory_ladder_step", "Rungs below the top: smaller batches first, then fewer builders.", ""),
    ("memory_headroom_bytes", "What may be taken before the kernel kills, by machine and cgroups.", ""),
    ("builders_wanted", "How many builders may be at work.", ""),
    ("copies_wanted", "How many files may be brought to hot at once.", ""),
    ("landing_unneeded_bytes", "Fetched files that nothing needs any more and that lie there still.", ""),
    ("quarantine_files", "Things kept in quarantine.", "kind"),
    ("quarantine_bytes", "Bytes kept in quarantine.", "kind"),
)
# Name, meaning, labels, the values of a single label that are there from the start.
COUNTERS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("worker_ends_total", "Ends of workers and of reusable workers' tasks.", ("activity", "class"), ()),
    ("workers_recycled_total", "Builders ended at a commit point because they had grown.", (), ()),
    ("shard_moved_bytes_total", "Bytes of sets moved.", ("move",), MOVES),
    ("quarantine_looks_total", "Quarantined files seen again.", ("verdict",), VERDICTS),
    ("quarantine_dropped_total", "Things given up.", ("kind",), KINDS),
    (
        "landing_requests_total",
        "What was asked of the download watchdog.",
        ("verb",),
        ("release", "fetch"),
    ),
)


class ShardMetrics:
    """Sets gauges, and raises counters to their totals."""

    def __init__(self, metrics: Metrics) -> None:
        self._gauges = {n: metrics.gauge(n, doc, (label,) if label else ()) for n, doc, label in GAUGES}
        self._counters = {name: metrics.counter(name, doc, labels) for name, doc, labels, _ in COUNTERS}
        self._counted: dict[str, Counter[Any]] = {name: Counter() for name in self._counters}
        for name, _, _, values in COUNTERS:
            for value in values:
                self._counters[name].labels(value)

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(label) if label else gauge).set(value)

    def set_all(self, name: str, values: Mapping[str, float]) -> None:
        """Set a gauge by label."""
        for label, value in values.items():
            self.set(name, value, label)

    def count(self, name: str, totals: Mapping[Any, int]) -> None:
        """Raise a counter to these totals by label or labels; () for a counter without."""
        counted, counter = self._counted[name], self._counters[name]
        for key, total in totals.items():
            labels = (key,) if isinstance(key, str) else key
            if total > counted[key]:
                (counter.labels(*labels) if labels else counter).inc(total - counted[key])
                counted[key] = total
