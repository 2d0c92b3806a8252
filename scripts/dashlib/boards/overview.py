"""Is all well, where does it stand, when does it end, what happened: in one screen."""

from __future__ import annotations

from dataclasses import replace

from dashlib.boards.common import CHECKPOINT_AGE, DATA_AHEAD, LOSS, PHASES, RUN_STATES, SINCE_STEP, SPEED
from dashlib.panels import BAD, GOOD, INFO, WARN, Board, Panel, Row

_OURS = 'alertstate="firing",pipeline=~"$pipeline|"'  # also what is about no single pipeline

_NOW = (
    Panel(
        "Critical alerts",
        "none",
        {"firing": f'count(ALERTS{{{_OURS},severity="critical"}}) or vector(0)'},
        "Alerts that want somebody now; listed below.",
        kind="stat",
        width=3,
        thresholds=((None, GOOD), (1, BAD)),
    ),
    Panel(
        "Warnings",
        "none",
        {"firing": f'count(ALERTS{{{_OURS},severity="warning"}}) or vector(0)'},
        "Alerts that want somebody today; listed below.",
        kind="stat",
        width=3,
        thresholds=((None, GOOD), (1, WARN)),
    ),
    Panel(
        "Daemons up",
        "none",
        {"of 3": 'sum(up{*,job="stoker"}) or vector(0)'},
        "Daemons that answer Prometheus: download watchdog, stage-shard loop, train supervisor. One that was "
        "stopped in order is not counted.",
        kind="stat",
        width=3,
        thresholds=((None, BAD), (1, WARN), (3, GOOD)),
    ),
    Panel(
        "Run",
        "none",
        {"{{state}}": "stoker_train_state{*} == 1"},
        "State of the run.",
        kind="stat",
        width=3,
        colours=RUN_STATES,
    ),
    Panel(
        "Progress",
        "percentunit",
        {"done": "stoker_train_step{*} / stoker_train_horizon_steps{*}"},
        "Steps done, of the run's last step.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        maximum=1,
    ),
    Panel(
        "Time left",
        "s",
        {"": "stoker_train_eta_seconds{*}"},
        "Time until the run's last step at the pace of the last ten minutes.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        empty="not known yet",
    ),
    Panel(
        "Tokens a second",
        "short",
        {"": "stoker_train_tokens_per_second{*}"},
        "Training speed now.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
    ),
    Panel(
        "Training loss",
        "none",
        {"": "stoker_train_loss{*}"},
        "Loss of the last step, in nats a token.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        minimum=None,
    ),
    Panel(
        "Last step",
        "s",
        {"ago": SINCE_STEP},
        "Time since the last step. The supervisor judges hangs by the run's own pace; above the hang limit "
        "it ends the trainer.",
        kind="stat",
        width=3,
        thresholds=((None, GOOD), (300, WARN), (1800, BAD)),
        empty="none yet",
    ),
    Panel(
        "Checkpoint age",
        "s",
        {"": "time() - stoker_train_checkpoint_timestamp_seconds{*}"},
        "Age of the newest proven checkpoint: what a crash would cost.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
    ),
    Panel(
        "Data ahead",
        "s",
        {"": "stoker_plan_ahead_seconds{*}"},
        "How long the planned training data lasts at the present speed.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        empty="not known yet",
    ),
    Panel(
        "Downloads",
        "percentunit",
        {
            "here": 'sum(stoker_download_files{*,state=~"verified|unproven|released"})'
            " / sum(stoker_download_files{*})"
        },
        "Source files that are here with a receipt, of all listed ones.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        maximum=1,
    ),
    Panel(
        "Sharding",
        "percentunit",
        {
            "done": "clamp_max(sum(stoker_shard_sources"
            '{*,state=~"proven|synced|released|quarantined|duplicate"}) / sum(stoker_download_files{*}), 1)'
        },
        "Source files that came to their end as a proven shard set, in quarantine or as duplicate, of all.",
        kind="stat",
        width=3,
        thresholds=((None, INFO),),
        maximum=1,
    ),
    Panel(
        "Fullest disk",
        "percentunit",
        {"free": "min(stoker_shard_disk_free_bytes{*} / stoker_shard_disk_size_bytes{*})"},
        "Free share of the fullest of hot, warm and state.",
        kind="stat",
        width=3,
        thresholds=((None, BAD), (0.05, WARN), (0.1, GOOD)),
    ),
    Panel(
        "Restarts",
        "none",
        {
            "in this time": "round(sum(increase(stoker_train_restarts_total"
            '{*,class!~"finished|stopped_as_asked"}[$__range])))'
        },
        "Launches that ended otherwise than finished or stopped as asked, in the time shown.",
        kind="stat",
        width=3,
        thresholds=((None, GOOD), (1, WARN), (5, BAD)),
    ),
    Panel(
        "Quarantined",
        "none",
        {
            "": 'sum(stoker_shard_sources{*,state="quarantined"})'
            " + sum(stoker_checkpoints_quarantined_total{*})"
        },
        "Source files in quarantine, and checkpoints set aside since the supervisor started.",
        kind="stat",
        width=3,
        thresholds=((None, GOOD), (1, WARN)),
    ),
)

_HAPPENED = (
    Panel(
        "The run's states",
        "none",
        {"{{phase}}": "stoker_train_phase{*}", "paused: {{reason}}": "max by (reason) (stoker_paused{*})"},
        "What the train supervisor did, and what the stage-shard loop waited for.",
        kind="states",
        width=10,
        colours={
            **PHASES,
            **{f"paused: {reason}": WARN for reason in ("memory", "disk_hot", "disk_warm", "disk_state")},
        },
    ),
    Panel(
        "Alerts firing",
        "none",
        {"": f'sum by (severity, alertname) (ALERTS{{{_OURS},alertname!="StokerWatchdog"}})'},
        "What fires now. The runbook says what to do about each.",
        kind="table",
        width=6,
        columns=("severity", "alertname"),
        empty="no alert fires",
    ),
    Panel(
        "Events",
        "none",
        {"": "topk(20, round(sum by (daemon, event) (increase(stoker_events_total{*}[$__range]))) > 0)"},
        "How often each thing happened in the time shown; `stoker events FILE` has the details.",
        kind="table",
        width=8,
        columns=("daemon", "event", "Value"),
        empty="nothing happened",
    ),
)

OVERVIEW = Board(
    "overview",
    "Overview",
    "Is all well, where does it stand, when does it end, what happened.",
    (
        Row("Now", _NOW),
        Row("The run", tuple(replace(each, width=6) for each in (LOSS, SPEED, CHECKPOINT_AGE, DATA_AHEAD))),
        Row("What happened", _HAPPENED),
    ),
)
