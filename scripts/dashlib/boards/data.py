"""From the source to proven shard sets: downloads, sharding, quarantine, disks, memory."""

from __future__ import annotations

from dashlib.boards.common import DISK_FREE
from dashlib.panels import BAD, INFO, WARN, Board, Panel, Row

_REMOTE = "only of a source that is fetched"
_WARM = "no warm disk"

_DOWNLOAD = (
    Panel(
        "Download rate",
        "binBps",
        {
            "made durable or hashed": "stoker_download_rate_bytes_per_second{*}",
            "over the network": "rate(stoker_download_fetched_bytes_total{*}[$__rate_interval])",
        },
        "Bytes made durable (of a folder: hashed) and bytes that came over the network.",
    ),
    Panel(
        "Source files by state",
        "short",
        {"{{state}}": "stoker_download_files{*} > 0"},
        "Source files as the download watchdog sees them.",
        stacked=True,
    ),
    Panel(
        "Time until the data is there",
        "s",
        {"downloads": "stoker_download_eta_seconds{*}", "sharding": "stoker_shard_eta_seconds{*}"},
        "Time left at the present rate.",
        empty="nothing is left to do",
    ),
    Panel(
        "Failed attempts",
        "none",
        {
            "{{class}}": "round(sum by (class) "
            "(increase(stoker_download_retries_total{*}[$__rate_interval]))) > 0",
            "wrong content": "round(increase(stoker_download_mismatches_total{*}[$__rate_interval])) > 0",
            "worker died": "round(increase(stoker_download_worker_restarts_total{*}[$__rate_interval])) > 0",
            "given up, now": "stoker_download_given_up{*} > 0",
        },
        "Attempts to fetch that failed, by class; each is tried again, with growing delay. Files given up "
        "now are tried again later, too.",
        empty="no attempt failed",
    ),
    Panel(
        "Bytes of the source",
        "bytes",
        {
            "verified": "stoker_download_verified_bytes{*}",
            "left to shard": "stoker_shard_parquet_left_bytes{*}",
            "fetched and discarded": "stoker_download_refetched_bytes_total{*}",
        },
        "Bytes of the files that are verified, those that wait for sharding, and what was fetched and "
        "dropped since the daemon started.",
    ),
    Panel(
        "Download waits",
        "none",
        {
            "paused: {{reason}}": "stoker_download_paused{*}",
            "source away": "1 - stoker_download_source_available{*}",
        },
        "Why nothing new is fetched or hashed.",
        kind="states",
        colours={
            **{f"paused: {reason}": WARN for reason in ("disk", "source", "state", "server")},
            "source away": BAD,
        },
    ),
)

_SHARDING = (
    Panel(
        "Tokenizing rate",
        "short",
        {"tokens/s": "stoker_shard_tokens_per_second{*}"},
        "Tokens committed to shard sets a second.",
    ),
    Panel(
        "Parquet processed",
        "binBps",
        {"parquet": "stoker_shard_parquet_bytes_per_second{*}"},
        "Bytes of parquet a second that became a shard set or were set aside.",
    ),
    Panel(
        "Sources by state",
        "short",
        {"{{state}}": "stoker_shard_sources{*} > 0"},
        "Source files on their way to a proven shard set.",
        stacked=True,
    ),
    Panel(
        "Tokens in proven shard sets",
        "short",
        {"{{split}}": "stoker_shard_tokens{*}"},
        "Tokens that can be trained on, and held-out ones.",
        stacked=True,
    ),
    Panel(
        "Workers at work",
        "none",
        {"{{activity}}": "stoker_shard_workers{*} > 0"},
        "Worker processes of the stage-shard loop by what they do.",
        stacked=True,
        empty="no worker is at work",
    ),
    Panel(
        "Builders and copies allowed",
        "none",
        {"builders": "stoker_builders_wanted{*}", "copies": "stoker_copies_wanted{*}"},
        "How many builders may work, and how many files may be brought to hot at once.",
    ),
    Panel(
        "Rows dropped by filters",
        "short",
        {"{{reason}}": "stoker_shard_dropped_rows{*} > 0"},
        "Rows of proven shard sets that the filters dropped, by reason.",
        empty="no filter dropped a row",
    ),
    Panel(
        "Ends of workers",
        "none",
        {
            "{{activity}}: {{class}}": "round(sum by (activity, class) "
            '(increase(stoker_worker_ends_total{*,class!="done"}[$__rate_interval]))) > 0'
        },
        "Workers and tasks that ended otherwise than done.",
        empty="every task was done",
    ),
    Panel(
        "Sharding waits",
        "none",
        {
            "paused: {{reason}}": "stoker_paused{*}",
            "staging": "stoker_staging_paused{*}",
            "stuck worker": "clamp_max(stoker_workers_stuck{*}, 1)",
        },
        "Why no new work begins: memory, a full disk, a source folder that does not answer, a worker that "
        "the kernel does not let go.",
        kind="states",
        colours={
            **{f"paused: {reason}": WARN for reason in ("memory", "disk_hot", "disk_warm", "disk_state")},
            **{"staging": WARN, "stuck worker": BAD},
        },
    ),
)

_QUARANTINE = (
    Panel(
        "Kept in quarantine",
        "none",
        {"{{kind}}": "stoker_quarantine_files{*}"},
        "Things that were bad by evidence and are kept: parquet, shard sets, records.",
        thresholds=((None, INFO),),
    ),
    Panel(
        "Bytes in quarantine",
        "bytes",
        {"{{kind}}": "stoker_quarantine_bytes{*}", "budget of each": "stoker_config_quarantine_bytes{*}"},
        "What the kept things take, and the most that a kind may take; the oldest go first.",
    ),
    Panel(
        "Looked at again, given up",
        "none",
        {
            "looked at: {{verdict}}": "stoker_quarantine_looks_total{*} > 0",
            "given up: {{kind}}": "stoker_quarantine_dropped_total{*} > 0",
        },
        "Later looks at quarantined files by verdict, and kept things that went.",
        empty="nothing yet",
    ),
)

_DISKS = (
    DISK_FREE,
    Panel(
        "Free and claimed bytes",
        "bytes",
        {
            "{{disk}} free": "stoker_shard_disk_free_bytes{*}",
            "{{disk}} claimed": "stoker_shard_disk_claimed_bytes{*}",
        },
        "Free bytes, and what all daemons still claim of each disk. Work begins only where the claim fits.",
    ),
    Panel(
        "Free inodes",
        "percentunit",
        {"{{disk}}": "stoker_shard_disk_free_inodes{*} / (stoker_shard_disk_inodes{*} > 0)"},
        "Free share of the inodes; file systems that make them as needed (btrfs) have none to show.",
        thresholds=((None, BAD), (0.05, WARN), (0.1, INFO)),
        maximum=1,
        empty="these file systems have no fixed number of inodes",
    ),
    Panel(
        "Shard sets by place",
        "none",
        {"{{place}}": "stoker_shard_sets{*}"},
        "Shard sets on hot, copied to warm, and on warm only (evicted).",
    ),
    Panel(
        "Bytes of shard sets by place",
        "bytes",
        {"{{place}}": "stoker_shard_sets_bytes{*}"},
        "What the shard sets take on hot and on warm.",
    ),
    Panel(
        "Sets moved",
        "binBps",
        {"{{move}}": "rate(stoker_shard_moved_bytes_total{*}[$__rate_interval])"},
        "Bytes a second of sets copied to warm, brought back and evicted.",
        empty=_WARM,
    ),
    Panel(
        "Sets that wait",
        "none",
        {
            "for their copy on warm": "stoker_shard_syncs_waiting{*}",
            "wanted, not on hot": "stoker_shard_sets_wanted_cold{*}",
        },
        "Sets without a proven copy on warm, and sets that a run waits for and that are not on hot.",
    ),
    Panel(
        "Fetched files no longer needed",
        "bytes",
        {"bytes": "stoker_landing_unneeded_bytes{*}"},
        "Fetched files that nothing needs any more; they go when the space is wanted.",
        empty=_REMOTE,
    ),
    Panel(
        "Disks that answer",
        "none",
        {"{{disk}}": "stoker_shard_disk_up{*}"},
        "1 while the disk answers.",
        kind="states",
        colours={"hot": "green", "warm": "green", "state": "green"},
    ),
)

_MEMORY = (
    Panel(
        "Memory of the workers",
        "bytes",
        {"all": "stoker_shard_workers_rss_bytes{*}", "largest: {{activity}}": "stoker_worker_rss_bytes{*}"},
        "Resident memory of all workers of the stage-shard loop, and of the largest of each activity.",
        width=12,
        empty="no worker ran yet",
    ),
    Panel(
        "Memory ladder",
        "none",
        {
            "steps down": "stoker_memory_ladder_step{*}",
            "builders recycled": "stoker_workers_recycled_total{*}",
        },
        "Where memory is short, batches get smaller, then builders fewer; builders that grew too large end "
        "at a commit.",
        width=12,
    ),
)

DATA = Board(
    "data",
    "Data",
    "From the source to proven shard sets.",
    (
        Row("Downloads", _DOWNLOAD),
        Row("Sharding", _SHARDING),
        Row("Quarantine", _QUARANTINE),
        Row("Disks", _DISKS),
        Row("Memory", _MEMORY),
    ),
)
