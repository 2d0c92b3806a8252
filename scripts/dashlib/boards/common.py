"""Panels that more than one dashboard shows, and the colours of states."""

from __future__ import annotations

from dashlib.panels import BAD, GOOD, IDLE, INFO, WARN, Panel

RUN_STATES = {
    "waiting": WARN,
    "running": GOOD,
    "paused": WARN,
    "halted": BAD,
    "finished": INFO,
    "failed": BAD,
}
PHASES = {
    **{"cleaning": IDLE, "proving": INFO, "backoff": BAD, "waiting": WARN, "training": GOOD},
    **{"halted": BAD, "finished": INFO},
}
TRAINER_PHASES = {
    **{"load": IDLE, "compile": IDLE, "train": GOOD, "eval": INFO, "checkpoint": "purple"},
    "wait-data": WARN,
}

# A clock that is a little ahead of Prometheus' makes it no negative time.
SINCE_STEP = "clamp_min(time() - stoker_train_last_step_timestamp_seconds{*}, 0)"

LOSS = Panel(
    "Loss",
    "none",
    {"training": "stoker_train_loss{*}", "held out": "stoker_train_val_loss{*}"},
    "Loss in nats a token: of the last step, and of the last evaluation on held-out windows.",
    width=12,
    minimum=None,
    empty="nothing trained yet",
)
SPEED = Panel(
    "Training speed",
    "short",
    {"tokens/s": "stoker_train_tokens_per_second{*}"},
    "Tokens trained on a second; 0 while nothing is trained.",
    width=12,
)
CHECKPOINT_AGE = Panel(
    "Checkpoint age, interval",
    "s",
    {
        "age": "time() - stoker_train_checkpoint_timestamp_seconds{*}",
        "interval": "stoker_config_checkpoint_interval_seconds{*}",
    },
    "Time since the newest proven checkpoint was sealed: what a crash would cost. Above twice the interval "
    "something is wrong.",
)
DATA_AHEAD = Panel(
    "Data ahead of the run",
    "s",
    {"planned data lasts": "stoker_plan_ahead_seconds{*}", "left of the run": "stoker_train_eta_seconds{*}"},
    "How long the planned training data lasts at the present speed, beside what is left of the run. Where "
    "the first line touches 0 before the second, the run waits for data.",
    empty="not known yet",
)
DISK_FREE = Panel(
    "Free on each disk",
    "percentunit",
    {"{{disk}}": "stoker_shard_disk_free_bytes{*} / stoker_shard_disk_size_bytes{*}"},
    "Free share of the file systems with hot, warm and state.",
    thresholds=((None, BAD), (0.05, WARN), (0.1, GOOD)),
    maximum=1,
)
