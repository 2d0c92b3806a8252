"""What makes each alert about the daemons fire, and what nearly does: series as promtool writes them."""

from __future__ import annotations

from alert_case import OWN, Case

UP = "1x100"
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
        "stage_shard of p has been gone for 35m 0s while others run.",
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
        "Prometheus has seen no daemon of Stoker in the last 15 days.",
        {'up{job="node"}': UP},
        (
            {"shard:up": UP},
            # It finished, and was stopped.
            {"train:up": "1x10", 'train:stoker_train_state{state="finished"}': "0x5 1x5"},
        ),
        by="",
    ),
    Case(
        "StokerDaemonBeatOld",
        15,
        "The main loop of stage_shard of p has stood still for 5m 0s.",
        {
            "shard:stoker_daemon_clock_seconds": "0+60x60",
            "shard:stoker_daemon_beat_timestamp_seconds": "0+60x10 600x50",
        },
        ({"shard:stoker_daemon_beat_timestamp_seconds": "0+60x60"},),
    ),
    Case(
        "StokerDaemonRestarting",
        35,
        "stage_shard of p was killed or failed 3 times in an hour.",
        {
            "shard:stoker_daemon_start_time_seconds": "1x10 600x10 1200x10 1800x10",
            "shard:stoker_daemon_unclean_start_time_seconds": "NaNx10 600x10 1200x10 1800x10",
        },
        (
            {"shard:stoker_daemon_unclean_start_time_seconds": "NaNx10 600x10 1200x20"},
            {"shard:stoker_daemon_unclean_start_time_seconds": "NaNx45"},  # stops in order
        ),
    ),
    Case(
        "StokerRequestsUnanswered",
        50,
        "A request to stage_shard of p has waited for 48m 20s.",
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
        "Findings of the last audit of p: 3.",
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
)
