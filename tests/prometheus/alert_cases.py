"""What makes each alert fire, and what nearly does: series as promtool writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DAEMONS = {"download": "download_watchdog", "shard": "stage_shard", "train": "train_supervisor"}
OWN = "job instance pipeline daemon"  # the labels of a daemon's series
Series = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """Alert `name` fires `at_min` minutes after 0 with the summary `says`.

    A series is "<daemon>:<metric>"; one without a daemon is written out. Each change of `but` to the series
    keeps it silent. `by` are the alert's labels that are of the first series' daemon, `more` its others.
    `severities` names the rules that fire, where an alert has several. `every_min` is between two samples.
    """

    name: str
    at_min: int
    says: str
    series: Series
    but: tuple[Series, ...]
    by: str = "pipeline daemon"
    more: Mapping[str, str] = field(default_factory=dict)
    severities: tuple[str, ...] = ()
    every_min: int = 1


UP = "1x100"
GPU = {"gpu": "0"}
GIB = str(2**30)

CASES = (
    Case("StokerWatchdog", 1, "Prometheus and Alertmanager work.", {"shard:up": UP}, (), by=""),
    Case(
        "StokerDaemonDown",
        5,
        "stage_shard of p does not answer.",
        {"shard:up": "0x100"},
        ({"shard:up": "1x3 0x0 1x100"},),
        by=OWN,
    ),
    Case(
        "StokerDaemonMissing",
        45,
        "stage_shard of p is gone for 35m 0s while others run.",
        {"shard:up": "1x10", "train:up": UP},
        ({"shard:up": UP}, {"train:up": "1x10"}),
    ),
    Case(
        "StokerPipelineAbsent",
        60,
        "The 2 daemons of p are gone, and its run is not finished.",
        {
            **{"train:up": "1x10", "shard:up": "1x10"},
            'train:stoker_train_state{state="finished"}': "0x10",
            'up{job="stoker",pipeline="other",daemon="stage_shard"}': UP,
        },
        ({"shard:up": UP}, {'train:stoker_train_state{state="finished"}': "0x5 1x5"}),
        by="pipeline",
    ),
    Case(
        "StokerPipelineAbsent",
        40,
        "Prometheus sees no daemon of Stoker.",
        {'up{job="node"}': UP},
        ({"shard:up": UP},),
        by="",
        more={"job": "stoker"},
    ),
    Case(
        "StokerDaemonBeatOld",
        15,
        "The loop of stage_shard of p stands still for 5m 0s.",
        {
            "shard:stoker_daemon_clock_seconds": "0+60x60",
            "shard:stoker_daemon_beat_timestamp_seconds": "0+60x10 600x50",
        },
        ({"shard:stoker_daemon_beat_timestamp_seconds": "0+60x60"},),
    ),
    Case(
        "StokerDaemonRestarting",
        35,
        "stage_shard of p started 3 times in an hour.",
        {"shard:stoker_daemon_start_time_seconds": "1x10 600x10 1200x10 1800x10"},
        ({"shard:stoker_daemon_start_time_seconds": "1x10 600x10 1200x20"},),
    ),
    Case(
        "StokerRequestsUnanswered",
        50,
        "A request to stage_shard of p waits for 48m 20s.",
        {"shard:stoker_requests_oldest_timestamp_seconds": "100x60"},
        ({"shard:stoker_requests_oldest_timestamp_seconds": "NaNx60"},),
        by=OWN,
    ),
    Case(
        "StokerStateUnwritable",
        10,
        "stage_shard of p cannot write the state directory (1 events).",
        {
            'shard:stoker_events_total{event="state_unwritable"}': "0x5 1x30",
            'shard:stoker_events_total{event="state_writable"}': "0x40",
        },
        ({'shard:stoker_events_total{event="state_writable"}': "0x6 1x30"},),
    ),
    Case(
        "StokerAuditFindings",
        2,
        "The last audit of p has 3 findings.",
        {"train:stoker_audit_findings": "3x9"},
        ({"train:stoker_audit_findings": "0x9"}, {"train:stoker_audit_findings": "NaNx9"}),
        by=OWN,
    ),
    Case(
        "StokerClockOff",
        20,
        "The clock behind shard:1 may be off by 30s.",
        {"shard:stoker_daemon_clock_seconds": "30+60x60"},
        ({"shard:stoker_daemon_clock_seconds": "3+60x60"},),
        by=OWN,
    ),
    Case(
        "StokerClockOff",
        20,
        "The clock behind n:9100 may be off by 16s.",
        {
            'node_timex_maxerror_seconds{instance="n:9100"}': "16x60",
            'node_timex_sync_status{instance="n:9100"}': "0x60",
        },
        ({'node_timex_sync_status{instance="n:9100"}': "1x60"},),
        by="",
        more={"instance": "n:9100"},
    ),
    Case(
        "StokerDownloadStalled",
        30,
        "Nothing is downloaded for p since 29m 59s.",
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
        "2 files of p could not be fetched.",
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
        "No source of p got on for 39m 59s.",
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
        "2 workers of p hang in the kernel.",
        {"shard:stoker_workers_stuck": "2x60"},
        ({"shard:stoker_workers_stuck": "0x60"},),
        by=OWN,
    ),
    Case(
        "StokerQuarantineGrowing",
        30,
        "1 files of p went to quarantine within 6 hours.",
        {'shard:stoker_events_total{event="source_quarantined"}': "0x10 1x60"},
        ({'shard:stoker_events_total{event="source_quarantined"}': "1x60"},),
        severities=("info",),
    ),
    Case(
        "StokerQuarantineGrowing",
        30,
        "12 files of p went to quarantine within 6 hours.",
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
        "The warm disk of p does not answer; 1GiB are there only.",
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
        "The warm disk of p does not answer; 1GiB are there only.",
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
        "The hot disk of p is full in 13h 40m 0s.",
        {
            'shard:stoker_shard_disk_free_bytes{disk="hot"}': "100000-500x60",
            'shard:stoker_shard_disk_size_bytes{disk="hot"}': "1000000x60",
            'shard:stoker_shard_disk_up{disk="hot"}': "1x60",
            "shard:stoker_config_warm": "0x60",
        },
        (
            {'shard:stoker_shard_disk_size_bytes{disk="hot"}': "400000x60"},
            {'shard:stoker_shard_disk_free_bytes{disk="hot"}': "100000-2500x12 70000x60"},
            {"shard:stoker_config_warm": "1x60"},
        ),
        more={"disk": "hot"},
        severities=("warning",),
        every_min=5,
    ),
    Case(
        "StokerDiskFullWithinADay",
        200,
        "The state disk of p is full in 3h 20m 0s.",
        {
            'shard:stoker_shard_disk_free_bytes{disk="state"}': "40000-500x60",
            'shard:stoker_shard_disk_size_bytes{disk="state"}': "1000000x60",
        },
        (),
        more={"disk": "state"},
        severities=("warning", "critical"),
        every_min=5,
    ),
    Case(
        "StokerInodesFullWithinADay",
        180,
        "The state disk of p has no inode left in 13h 40m 0s.",
        {
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
        more={"disk": "state"},
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
    Case(
        "StokerTrainingStalled",
        60,
        "p made no step for 10m 0s.",
        {
            "train:stoker_train_last_step_timestamp_seconds": "3000x90",
            "train:stoker_train_step_seconds_sum": "0+60x50 3000x40",
            "train:stoker_train_step_seconds_count": "0+60x50 3000x40",
            'train:stoker_trainer_phase{phase="train"}': "1x90",
            'train:stoker_train_state{state="running"}': "1x90",
            "train:stoker_config_hang_limit_seconds": "900x90",
        },
        (
            {"train:stoker_train_step_seconds_count": "0+1x50 50x40"},  # a step takes a minute
            {'train:stoker_trainer_phase{phase="train"}': "0x90"},
        ),
    ),
    Case(
        "StokerTrainingStalled",
        40,
        "p made no step for 39m 59s.",
        {
            "train:stoker_train_last_step_timestamp_seconds": "NaNx90",
            "train:stoker_daemon_start_time_seconds": "1x90",
            'train:stoker_train_state{state="running"}': "1x90",
            "train:stoker_config_hang_limit_seconds": "900x90",
        },
        ({'train:stoker_train_state{state="running"}': "0x90"},),
    ),
    Case(
        "StokerRunFailed",
        5,
        "The run of p failed at step 120.",
        {"train:stoker_train_step": "120x9", 'train:stoker_train_state{state="failed"}': "1x9"},
        ({'train:stoker_train_state{state="failed"}': "0x9"},),
        by=OWN,
    ),
    Case(
        "StokerCrashLoop",
        10,
        "The trainer of p ended 10 times within an hour.",
        {'train:stoker_train_restarts_total{class="crashed"}': "0+1x60"},
        (
            {
                'train:stoker_train_restarts_total{class="crashed"}': "0x60",
                'train:stoker_train_restarts_total{class="stopped_as_asked"}': "0+1x60",
            },
        ),
        severities=("warning",),
    ),
    Case(
        "StokerCrashLoop",
        5,
        "3 launches of p one after the other led nowhere.",
        {
            "train:stoker_train_fruitless_launches": "3x9",
            "train:stoker_config_no_progress_launches": "5x9",
        },
        ({"train:stoker_train_fruitless_launches": "2x9"},),
        by=OWN,
        severities=("critical",),
    ),
    Case(
        "StokerDataWait",
        40,
        "The run of p waits for data since 38m 20s.",
        {
            "train:stoker_train_waiting_since_timestamp_seconds": "100x60",
            "train:stoker_train_waiting_for_data": "1x60",
            "train:stoker_train_launches": "2x60",
        },
        (
            {"train:stoker_train_launches": "0x60"},  # it has not begun
            {"train:stoker_train_waiting_since_timestamp_seconds": "NaNx60"},
        ),
        by=OWN,
    ),
    Case(
        "StokerStarvedWithinTheHour",
        20,
        "The data planned for p lasts 10m 0s.",
        {
            "train:stoker_plan_ahead_seconds": "600x60",
            "train:stoker_train_eta_seconds": "7200x60",
            "train:stoker_train_history_tokens": "900000x60",
            "train:stoker_train_tokens_per_second": "100x60",
            'shard:stoker_shard_tokens{split="train"}': "1000000x60",
            "shard:stoker_shard_dataset_complete": "0x60",
            "shard:stoker_shard_sets_wanted_cold": "0x60",
        },
        (
            {"train:stoker_train_eta_seconds": "300x60"},
            {"shard:stoker_shard_dataset_complete": "1x60"},
            {'shard:stoker_shard_tokens{split="train"}': "9000000x60"},
            {'shard:stoker_shard_tokens{split="train"}': "500000x60"},  # a later epoch
        ),
        by=OWN,
    ),
    Case(
        "StokerCheckpointOld",
        40,
        "The newest proven checkpoint of p is 39m 59s old.",
        {
            "train:stoker_train_checkpoint_timestamp_seconds": "1x60",
            "train:stoker_config_checkpoint_interval_seconds": "600x60",
            'train:stoker_train_state{state="running"}': "1x60",
        },
        (
            {"train:stoker_config_checkpoint_interval_seconds": "NaNx60"},
            {'train:stoker_train_state{state="running"}': "0x60"},
        ),
        by=OWN,
    ),
    Case(
        "StokerCheckpointQuarantined",
        10,
        "1 checkpoints of p were not whole.",
        {"train:stoker_checkpoints_quarantined_total": "0x5 1x20"},
        ({"train:stoker_checkpoints_quarantined_total": "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerMirrorBehind",
        90,
        "3 checkpoints of p have no copy on warm.",
        {"train:stoker_checkpoint_mirror_waiting": "3x90"},
        ({"train:stoker_checkpoint_mirror_waiting": "1x90"},),
        by=OWN,
    ),
    Case(
        "StokerLossNotFinite",
        10,
        "p told 2 losses or gradient norms that are no numbers.",
        {"train:stoker_train_nonfinite_total": "0x5 2x20"},
        ({"train:stoker_train_nonfinite_total": "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerLossSpike",
        132,
        "The loss of p is 1.5 times that of two hours.",
        {"train:stoker_train_loss": "2x120 3x20", 'train:stoker_trainer_phase{phase="train"}': "1x150"},
        ({"train:stoker_train_loss": "2x120 2.2x20"},),
        by=OWN,
    ),
    Case(
        "StokerGpuSamplerDown",
        15,
        "The 2 GPUs of p cannot be looked at.",
        {"train:stoker_gpus_expected": "2x30", "train:stoker_gpu_sampler_up": "0x30"},
        ({"train:stoker_gpu_sampler_up": "NaNx30"},),
        by=OWN,
    ),
    Case(
        "StokerGpuLost",
        5,
        "1 GPUs of p are gone from the bus.",
        {
            "train:stoker_gpus_expected": "2x30",
            'train:stoker_gpu_present{gpu="0"}': "1x30",
            'train:stoker_gpu_present{gpu="1"}': "0x30",
        },
        ({'train:stoker_gpu_present{gpu="1"}': "1x30"}, {"train:stoker_gpus_expected": "NaNx30"}),
    ),
    Case(
        "StokerGpuXidHardware",
        10,
        "GPU 0 of p had 1 Xid errors of hardware or driver.",
        {'train:stoker_gpu_xid_total{gpu="0",class="hardware"}': "0x5 1x20"},
        ({'train:stoker_gpu_xid_total{gpu="0",class="hardware"}': "0x20"},),
        by=OWN,
        more={**GPU, "class": "hardware"},
    ),
    Case(
        "StokerGpuXidApplication",
        10,
        "GPU 0 of p had 2 Xid errors of a program.",
        {'train:stoker_gpu_xid_total{gpu="0",class="application"}': "0x5 2x20"},
        ({'train:stoker_gpu_xid_total{gpu="0",class="application"}': "0x20"},),
        by=OWN,
        more={**GPU, "class": "application"},
    ),
    Case(
        "StokerGpuEccUncorrected",
        10,
        "GPU 0 of p had 1 memory errors that ECC did not correct.",
        {'train:stoker_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "17x5 18x20"},
        (
            {
                'train:stoker_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "17x20",
                'train:stoker_gpu_ecc_errors_total{gpu="0",kind="corrected"}': "17+9x20",
            },
        ),
        by=OWN,
        more={**GPU, "kind": "uncorrected"},
    ),
    Case(
        "StokerGpuRemapPending",
        1,
        "GPU 0 of p has rows to remap (1).",
        {'train:stoker_gpu_remap_pending{gpu="0"}': "1x9"},
        ({'train:stoker_gpu_remap_pending{gpu="0"}': "0x9"},),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuThrottled",
        30,
        "GPU 0 of p is slowed down 100% of the time.",
        {'train:stoker_gpu_clock_event{gpu="0",reason="hw_thermal_slowdown"}': "1x60"},
        (
            {
                'train:stoker_gpu_clock_event{gpu="0",reason="hw_thermal_slowdown"}': "0x60",
                'train:stoker_gpu_clock_event{gpu="0",reason="sw_power_cap"}': "1x60",
            },
        ),
        more=GPU,
    ),
    Case(
        "StokerGpuHot",
        15,
        "GPU 0 of p has 91 degrees Celsius.",
        {'train:stoker_gpu_temperature_celsius{gpu="0"}': "91x60"},
        ({'train:stoker_gpu_temperature_celsius{gpu="0"}': "70x60"},),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuIdle",
        40,
        "GPU 0 is busy 5% of the time while p trains.",
        {
            'train:stoker_gpu_utilization_ratio{gpu="0"}': "0.05x60",
            'train:stoker_trainer_phase{phase="train"}': "1x60",
        },
        (
            {'train:stoker_trainer_phase{phase="train"}': "0x60"},
            {'train:stoker_gpu_utilization_ratio{gpu="0"}': "0.9x60"},
        ),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuShared",
        20,
        "Others hold 20% of the memory of GPU 0 of p.",
        {
            'train:stoker_gpu_process_memory_bytes{gpu="0",process="other"}': "2x60",
            'train:stoker_gpu_memory_total_bytes{gpu="0"}': "10x60",
        },
        ({'train:stoker_gpu_process_memory_bytes{gpu="0",process="other"}': "0x60"},),
        by=OWN,
        more={**GPU, "process": "other"},
    ),
    Case(
        "StokerGpuSpill",
        10,
        "The trainer of p works in the machine's memory; 1GiB are in use on the cards.",
        {
            'train:stoker_gpu_process_memory_bytes{gpu="0",process="trainer"}': f"{GIB}x30",
            'train:stoker_gpu_spill{certainty="certain"}': "1x30",
            'train:stoker_gpu_spill{certainty="suspected"}': "0x30",
        },
        ({'train:stoker_gpu_spill{certainty="certain"}': "0x30"},),
    ),
)
