"""What makes each alert about the run fire, and what nearly does: series as promtool writes them."""

from __future__ import annotations

from alert_case import OWN, Case

CASES = (
    Case(
        "StokerTrainingStalled",
        60,
        "p has made no step for 10m 0s.",
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
        "p has made no step for 39m 59s.",
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
        "StokerRunHalted",
        5,
        "The run of p is halted at step 120.",
        {"train:stoker_train_step": "120x9", "train:stoker_train_halted": "1x9"},
        ({"train:stoker_train_halted": "0x9"},),
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
        "3 launches of p in a row made no progress.",
        {
            "train:stoker_train_fruitless_launches": "3x9",
            "train:stoker_config_no_progress_launches": "5x9",
        },
        ({"train:stoker_train_fruitless_launches": "2x9"},),
        by=OWN,
        severities=("critical",),
    ),
    Case(
        "StokerGoodputBurn",
        70,
        "p lost 83.33% of the last hour.",
        {
            'train:stoker_train_time_seconds_total{bucket="load"}': "0+25x90",
            'train:stoker_train_time_seconds_total{bucket="redone"}': "0+25x90",
            'train:stoker_train_time_seconds_total{bucket="steps"}': "0+10x90",
        },
        (
            {'train:stoker_train_time_seconds_total{bucket="load"}': "0+15x90"},
            {'train:stoker_train_time_seconds_total{bucket="redone"}': "0x50 0+50x40"},  # for a few minutes
            {'train:stoker_train_time_seconds_total{bucket="load"}': "0+60x62 3720x30"},  # no longer
            {
                'train:stoker_train_time_seconds_total{bucket="load"}': "0x90",
                'train:stoker_train_time_seconds_total{bucket="redone"}': "0x90",
                'train:stoker_train_time_seconds_total{bucket="data_wait"}': "0+25x90",
                'train:stoker_train_time_seconds_total{bucket="halted"}': "0+25x90",
            },
        ),
        severities=("critical",),
    ),
    Case(
        "StokerGoodputBurn",
        400,
        "p lost 33.33% of the last 6 hours.",
        {
            'train:stoker_train_time_seconds_total{bucket="save_stall"}': "0+20x450",
            'train:stoker_train_time_seconds_total{bucket="steps"}': "0+40x450",
        },
        (
            {'train:stoker_train_time_seconds_total{bucket="save_stall"}': "0+15x450"},
            {'train:stoker_train_time_seconds_total{bucket="save_stall"}': "0+22x368 8096x80"},  # no longer
            {
                'train:stoker_train_time_seconds_total{bucket="save_stall"}': "0x450",
                'train:stoker_train_time_seconds_total{bucket="halted"}': "0+20x450",
            },
        ),
        severities=("warning",),
    ),
    Case(
        "StokerEvalRegression",
        5,
        "p got worse in heldout/bits_per_byte, now 1.25.",
        {
            'train:stoker_eval_value{suite="heldout",metric="heldout/bits_per_byte"}': "1.25x9",
            'train:stoker_eval_verdict{metric="heldout/bits_per_byte",verdict="worse"}': "1x9",
        },
        (
            {'train:stoker_eval_verdict{metric="heldout/bits_per_byte",verdict="worse"}': "0x9"},
            {
                'train:stoker_eval_verdict{metric="heldout/bits_per_byte",verdict="worse"}': "0x9",
                'train:stoker_eval_verdict{metric="heldout/bits_per_byte",verdict="doubt"}': "1x9",
            },
        ),
        by=OWN,
        more={"metric": "heldout/bits_per_byte", "suite": "heldout"},
    ),
    Case(
        "StokerEvalStale",
        400,
        "An evaluation of p has been due for 6h 40m 0s.",
        {"train:stoker_eval_due_timestamp_seconds": "0x450"},
        (
            {"train:stoker_eval_due_timestamp_seconds": "NaNx450"},
            {"train:stoker_eval_due_timestamp_seconds": "7200x450"},
        ),
        by=OWN,
    ),
    Case(
        "StokerDataWait",
        40,
        "The run of p has waited for data for 38m 20s.",
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
        "Checkpoints of p that were not whole, within 6 hours: 1.",
        {"train:stoker_checkpoints_quarantined_total": "0x5 1x20"},
        ({"train:stoker_checkpoints_quarantined_total": "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerSaveRefused",
        20,
        "Newest saves of the trainer of p that are not sealed: 2.",
        {"train:stoker_train_saves_refused": "2x20"},
        ({"train:stoker_train_saves_refused": "1x5 0x15"},),
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
        "Losses or gradient norms of p that were NaN or infinite, within 15 minutes: 2.",
        {"train:stoker_train_nonfinite_total": "0x5 2x20"},
        ({"train:stoker_train_nonfinite_total": "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerTrainingSlow",
        2,
        "p trains slower than it usually does: 600 tokens/s.",
        {"train:stoker_train_tokens_per_second": "600x20", "train:stoker_train_slow": "1x20"},
        ({"train:stoker_train_slow": "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerLossSpike",
        12,
        "The loss of p has jumped, to 3.",
        {"train:stoker_train_loss": "3x20", 'train:stoker_train_loss_watch{kind="spike"}': "1x20"},
        (
            {'train:stoker_train_loss_watch{kind="spike"}': "0x20"},
            {'train:stoker_train_loss_watch{kind="spike"}': "0x5 1x5 0x10"},  # it passed
        ),
        by=OWN,
    ),
    Case(
        "StokerLossDiverged",
        7,
        "The loss of p diverges; it is 3.",
        {"train:stoker_train_loss": "3x20", 'train:stoker_train_loss_watch{kind="diverged"}': "1x20"},
        ({'train:stoker_train_loss_watch{kind="diverged"}': "0x20"},),
        by=OWN,
    ),
    Case(
        "StokerLossPlateau",
        2,
        "The loss of p stands still at 3.",
        {"train:stoker_train_loss": "3x20", 'train:stoker_train_loss_watch{kind="plateau"}': "1x20"},
        ({'train:stoker_train_loss_watch{kind="plateau"}': "0x20"},),
        by=OWN,
    ),
)
