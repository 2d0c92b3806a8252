"""The stage-shard loop's metrics, each with its place in the status."""

from __future__ import annotations

from stoker.kit.metrics import Figure

FIGURES = (
    Figure("shard_sources", "Source files by state.", "sources.*", "state"),
    Figure("shard_documents", "Documents in proven shard sets.", "documents.*", "split"),
    Figure("shard_tokens", "Tokens in proven shard sets.", "tokens.*", "split"),
    Figure("shard_imported_sets", "Imported shard sets.", "imported.by_documents.*", "documents"),
    Figure("shard_dropped_rows", "Rows that filters dropped of proven shard sets.", "dropped.*", "reason"),
    Figure("shard_workers", "Workers at work.", "at_work.*", "activity"),
    Figure("shard_workers_rss_bytes", "Resident memory of all workers together.", "workers_rss_bytes"),
    Figure("shard_tokens_per_second", "Tokens committed, over the last half minute.", "tokens_per_second"),
    Figure("shard_parquet_bytes_per_second", "Parquet brought to its end.", "parquet_bytes_per_second"),
    Figure("shard_parquet_left_bytes", "Parquet that waits for its end.", "bytes_left"),
    Figure("shard_last_progress_timestamp_seconds", "When something last got on.", "progress_at"),
    Figure("shard_dataset_complete", "1 when every listed source came to its end.", "complete"),
    Figure("shard_sets", "Shard sets on hot, copied to warm, and on warm only.", "sets.by_place.*", "place"),
    Figure("shard_sets_bytes", "What those sets take.", "sets.bytes.*", "place"),
    Figure("shard_disk_free_bytes", "Free space as last measured.", "disks.*.free_bytes", "disk"),
    Figure("shard_disk_size_bytes", "Size of the file system.", "disks.*.total_bytes", "disk"),
    Figure("shard_disk_claimed_bytes", "What all daemons claim of it.", "disks.*.claimed_bytes", "disk"),
    Figure("shard_disk_up", "1 while the disk answers.", "disks.*.up", "disk"),
    Figure("shard_syncs_waiting", "Sets without a proven copy on warm.", "sets.waiting_for_sync"),
    Figure("shard_sets_wanted_cold", "Sets that a run waits for and are not on hot.", "sets.wanted_cold"),
    Figure("paused", "1 while work waits for this.", "is_paused.*", "reason"),
    Figure("staging_paused", "1 while the source folder does not answer.", "is_staging_paused"),
    Figure("workers_stuck", "Killed workers that the kernel does not let go.", "stuck"),
    Figure("worker_rss_bytes", "Memory of the largest worker of an activity.", "largest.*", "activity"),
    Figure("memory_ladder_step", "Rungs below the top: smaller batches, then fewer builders.", "memory.step"),
    Figure("memory_headroom_bytes", "What may be taken before the kernel kills.", "memory.headroom_bytes"),
    Figure("builders_wanted", "How many builders may be at work.", "parallelism.builders"),
    Figure("copies_wanted", "How many files may be brought to hot at once.", "parallelism.copies"),
    Figure("landing_unneeded_bytes", "Fetched files that nothing needs any more.", "landing.unneeded_bytes"),
    Figure("quarantine_files", "Things kept in quarantine.", "quarantine.files.*", "kind"),
    Figure("quarantine_bytes", "Bytes kept in quarantine.", "quarantine.bytes.*", "kind"),
    Figure("quarantine_looks_total", "Quarantined files seen again.", "quarantine.looks.*", "verdict"),
    Figure("quarantine_dropped_total", "Things given up.", "quarantine.dropped.*", "kind"),
    Figure("worker_ends_total", "Ends of workers and of their tasks.", "ends.*.*", "activity class"),
    Figure("workers_recycled_total", "Builders ended at a commit point for their size.", "recycled"),
    Figure("shard_moved_bytes_total", "Bytes of sets moved.", "moved_bytes.*", "move"),
)
