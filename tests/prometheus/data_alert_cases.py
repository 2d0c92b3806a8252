"""What makes each alert about data fire, and what nearly does: series as promtool writes them."""

from __future__ import annotations

from alert_case import OWN, Case

GIB = str(2**30)
# Two disks of pipeline p and one of q are one file system of the machine.
OF_Q = 'stoker_shard_disk_NAME{job="stoker",instance="shard:2",pipeline="q",daemon="stage_shard",disk="hot"}'
ONE_FILE_SYSTEM = {
    'shard:stoker_shard_disk_device{disk="hot"}': "64769x60",
    'shard:stoker_shard_disk_device{disk="state"}': "64769x60",
    OF_Q.replace("NAME", "device"): "64769x60",
}
CASES = (
    Case(
        "StokerDownloadStalled",
        30,
        "The download of p has been stalled for 29m 59s.",
        {
            "download:stoker_download_last_progress_timestamp_seconds": "NaNx60",
            "download:stoker_daemon_start_time_seconds": "1x60",
            "download:stoker_config_download_stall_seconds": "300x60",
            'download:stoker_download_files{state="waiting"}': "2x60",
            'download:stoker_download_paused{reason="disk"}': "0x60",
        },
        (
            {'download:stoker_download_files{state="waiting"}': "0x60"},
            {'download:stoker_download_paused{reason="disk"}': "1x60"},
            {"download:stoker_download_last_progress_timestamp_seconds": "0+60x60"},
        ),
    ),
    Case(
        "StokerDownloadGivenUp",
        20,
        "Files of p that could not be fetched: 2.",
        {"download:stoker_download_given_up": "2x60"},
        ({"download:stoker_download_given_up": "0x60"},),
        by=OWN,
    ),
    Case(
        "StokerSourceAway",
        20,
        "The source of p cannot be read, says download_watchdog.",
        {"download:stoker_download_source_available": "0x60"},
        ({"download:stoker_download_source_available": "1x60"},),
        by=OWN,
    ),
    Case(
        "StokerShardingStalled",
        40,
        "Sharding of p has made no progress for 39m 59s.",
        {
            "shard:stoker_shard_last_progress_timestamp_seconds": "1x60",
            'shard:stoker_shard_sources{state="staged"}': "2x60",
            "shard:stoker_shard_tokens_per_second": "0x60",
            'shard:stoker_paused{reason="memory"}': "0x60",
        },
        (
            {"shard:stoker_shard_tokens_per_second": "0x20 900x40"},
            {'shard:stoker_shard_sources{state="staged"}': "0x60"},
            {'shard:stoker_paused{reason="memory"}': "1x60"},
        ),
    ),
    Case(
        "StokerWorkersStuck",
        20,
        "Workers of p that hang in the kernel: 2.",
        {"shard:stoker_workers_stuck": "2x60"},
        ({"shard:stoker_workers_stuck": "0x60"},),
        by=OWN,
    ),
    Case(
        "StokerQuarantineGrowing",
        30,
        "Files of p quarantined within 6 hours: 1.",
        {'shard:stoker_events_total{event="source_quarantined"}': "0x10 1x60"},
        ({'shard:stoker_events_total{event="source_quarantined"}': "1x60"},),
        severities=("info",),
    ),
    Case(
        "StokerQuarantineGrowing",
        30,
        "Files of p quarantined within 6 hours: 12.",
        {'shard:stoker_events_total{event="source_quarantined"}': "0x10 12x60"},
        (),
        severities=("info", "warning"),
    ),
    Case(
        "StokerSyncBehind",
        300,
        "6 shard sets of p have no proven copy on warm.",
        {"shard:stoker_shard_syncs_waiting": "6x60"},
        ({"shard:stoker_shard_syncs_waiting": "400-5x60"}, {"shard:stoker_shard_syncs_waiting": "4x60"}),
        by=OWN,
        every_min=5,
    ),
    Case(
        "StokerWarmAway",
        15,
        "The warm disk of p does not answer; 1GiB of shard sets are only there.",
        {
            'shard:stoker_shard_sets_bytes{place="evicted"}': f"{GIB}x60",
            'shard:stoker_shard_disk_up{disk="warm"}': "0x60",
            "shard:stoker_shard_sets_wanted_cold": "0x60",
        },
        ({'shard:stoker_shard_disk_up{disk="warm"}': "1x60"},),
        by=OWN,
        more={"place": "evicted"},
        severities=("warning",),
    ),
    Case(
        "StokerWarmAway",
        15,
        "The warm disk of p does not answer; 1GiB of shard sets are only there.",
        {
            'shard:stoker_shard_sets_bytes{place="evicted"}': f"{GIB}x60",
            'shard:stoker_shard_disk_up{disk="warm"}': "0x60",
            "shard:stoker_shard_sets_wanted_cold": "2x60",
        },
        (),
        by=OWN,
        more={"place": "evicted"},
        severities=("warning", "critical"),
    ),
    Case(
        "StokerDiskAway",
        10,
        "The hot or the state disk of p does not answer, with 1GiB of shard sets.",
        {
            'shard:stoker_shard_sets_bytes{place="hot"}': f"{GIB}x60",
            'shard:stoker_shard_disk_up{disk="hot"}': "0x60",
        },
        ({'shard:stoker_shard_disk_up{disk="hot"}': "1x60"},),
        by=OWN,
        more={"place": "hot"},
    ),
    Case(
        "StokerDiskFullWithinADay",
        180,
        "The disk of p (hot), p (state), q (hot) will be full in 13h 40m 0s.",
        {
            **ONE_FILE_SYSTEM,
            'shard:stoker_shard_disk_free_bytes{disk="state"}': "100000-500x60",
            'shard:stoker_shard_disk_size_bytes{disk="state"}': "1000000x60",
            OF_Q.replace("NAME", "free_bytes"): "100100-500x60",
            OF_Q.replace("NAME", "size_bytes"): "1000000x60",
            'shard:stoker_shard_disk_free_bytes{disk="hot"}': "100000-500x60",
            'shard:stoker_shard_disk_size_bytes{disk="hot"}': "1000000x60",
            'shard:stoker_shard_disk_up{disk="hot"}': "1x60",
            "shard:stoker_config_warm": "0x60",
        },
        (
            {
                'shard:stoker_shard_disk_size_bytes{disk="hot"}': "400000x60",
                'shard:stoker_shard_disk_size_bytes{disk="state"}': "400000x60",
                OF_Q.replace("NAME", "size_bytes"): "400000x60",
            },
            {
                'shard:stoker_shard_disk_free_bytes{disk="hot"}': "100000-2500x12 70000x60",
                'shard:stoker_shard_disk_free_bytes{disk="state"}': "100000-2500x12 70000x60",
                OF_Q.replace("NAME", "free_bytes"): "100000-2500x12 70000x60",
            },
            {
                "shard:stoker_config_warm": "1x60",  # hot is filled on purpose
                'shard:stoker_shard_disk_size_bytes{disk="state"}': "400000x60",
                OF_Q.replace("NAME", "size_bytes"): "400000x60",
            },
        ),
        by="",
        more={"host": "shard", "device": "64769"},
        severities=("warning",),
        every_min=5,
    ),
    Case(
        "StokerDiskFullWithinADay",
        200,
        "The disk of p (state) will be full in 3h 20m 0s.",
        {
            'shard:stoker_shard_disk_device{disk="state"}': "64769x60",
            'shard:stoker_shard_disk_free_bytes{disk="state"}': "40000-500x60",
            'shard:stoker_shard_disk_size_bytes{disk="state"}': "1000000x60",
        },
        (),
        by="",
        more={"host": "shard", "device": "64769"},
        severities=("warning", "critical"),
        every_min=5,
    ),
    Case(
        "StokerInodesFullWithinADay",
        180,
        "The disk of p (state) will run out of inodes in 13h 40m 0s.",
        {
            'shard:stoker_shard_disk_device{disk="state"}': "64769x60",
            'shard:stoker_shard_disk_free_inodes{disk="state"}': "100000-500x60",
            'shard:stoker_shard_disk_inodes{disk="state"}': "1000000x60",
        },
        (
            {'shard:stoker_shard_disk_free_inodes{disk="state"}': "100000x60"},
            {  # a file system that makes them as it goes
                'shard:stoker_shard_disk_free_inodes{disk="state"}': "NaNx60",
                'shard:stoker_shard_disk_inodes{disk="state"}': "NaNx60",
            },
        ),
        by="",
        more={"host": "shard", "device": "64769"},
        every_min=5,
    ),
    Case(
        "StokerPausedForDisk",
        15,
        "stage_shard of p waits; disks that are full: 1.",
        {
            'shard:stoker_paused{reason="disk_hot"}': "1x60",
            'shard:stoker_paused{reason="disk_state"}': "0x60",
        },
        ({'shard:stoker_paused{reason="disk_hot"}': "0x60", 'shard:stoker_paused{reason="memory"}': "1x60"},),
    ),
    Case(
        "StokerDiskShort",
        45,
        "Work of p waits for room (15 events in 15 minutes).",
        {'shard:stoker_events_total{event="disk_short"}': "0+1x60"},
        ({'shard:stoker_events_total{event="disk_short"}': "0+1x5 5x60"},),
    ),
    Case(
        "StokerPausedForMemory",
        20,
        "Sharding of p waits for memory; 1GiB are left.",
        {
            "shard:stoker_memory_headroom_bytes": f"{GIB}x60",
            'shard:stoker_paused{reason="memory"}': "1x60",
        },
        ({'shard:stoker_paused{reason="memory"}': "0x60"},),
        by=OWN,
    ),
    Case(
        "StokerMemoryLeak",
        300,
        "train_supervisor of p and its children grow by 13.41GiB a day, more than there is.",
        {
            'train:stoker_process_rss_bytes{role="daemon"}': "0x60",
            'train:stoker_process_rss_bytes{role="sealer"}': "NaNx60",
            'train:stoker_process_rss_bytes{role="trainer"}': "1000000000+50000000x60",
            "train:stoker_memory_headroom_bytes": "10000000000x60",
        },
        (
            {"train:stoker_memory_headroom_bytes": "20000000000x60"},
            {'train:stoker_process_rss_bytes{role="trainer"}': "0x36 40000000000x24"},  # a launch
            {'train:stoker_process_rss_bytes{role="trainer"}': "1000000000+500000000x9 " * 6},
        ),
        every_min=5,
    ),
)
