"""The run: losses, speed, checkpoints, restarts, the data ahead, the GPUs."""

from __future__ import annotations

from dashlib.boards.common import (
    CHECKPOINT_AGE,
    DATA_AHEAD,
    LOSS,
    PHASES,
    RUN_STATES,
    SINCE_STEP,
    SPEED,
    TRAINER_PHASES,
)
from dashlib.panels import BAD, GOOD, INFO, WARN, Board, Panel, Row

_NO_GPU = "no GPU"
_LACKS = "no GPU, or one that does not tell this"
_LOST = '{*,bucket!~"steps|data_wait|halted|evaluation"}'  # as the alerts count it
_MIRROR = "no mirror of the checkpoints"


def _quantiles(histogram: str) -> dict[str, str]:
    """The median, the 0.99 quantile and the mean of a histogram."""
    buckets = f"sum by (le) (rate({histogram}_bucket{{*}}[$__rate_interval]))"
    mean = f"rate({histogram}_sum{{*}}[$__rate_interval]) / rate({histogram}_count{{*}}[$__rate_interval])"
    return {
        "median": f"histogram_quantile(0.5, {buckets})",
        "99 %": f"histogram_quantile(0.99, {buckets})",
        "mean": mean,
    }


_STEPS = (
    LOSS,
    SPEED,
    Panel(
        "Step time",
        "s",
        _quantiles("stoker_train_step_seconds"),
        "Seconds a step takes. A growing distance of the 99 % line from the median means hiccups: data, "
        "disk, a neighbour.",
    ),
    Panel(
        "Learning rate",
        "sci",
        {"learning rate": "stoker_train_learning_rate{*}"},
        "Learning rate of the last step.",
    ),
    Panel(
        "Gradient norm",
        "none",
        {"before clipping": "stoker_train_gradient_norm{*}"},
        "Norm of the gradient before clipping.",
        empty="nothing trained yet",
    ),
    Panel(
        "Step and horizon",
        "short",
        {"step": "stoker_train_step{*}", "horizon": "stoker_train_horizon_steps{*}"},
        "The run's step and its last one; a rollback shows as a fall.",
    ),
    Panel(
        "Tokens",
        "short",
        {"in the run's history": "stoker_train_history_tokens{*}"},
        "Training tokens in the run's history; falls at a rollback.",
    ),
    Panel(
        "Not finite",
        "none",
        {"losses and norms": "stoker_train_nonfinite_total{*}"},
        "Losses and gradient norms that were not finite, since the supervisor started.",
        thresholds=((None, GOOD), (1, BAD)),
    ),
    Panel(
        "Loss and speed watch",
        "none",
        {"{{kind}}": "stoker_train_loss_watch{*}", "slow": "stoker_train_slow{*}"},
        "What is wrong with the loss (a spike, a divergence, a plateau), and whether the trainer is slower "
        "than it usually is, while that stands.",
        kind="states",
        colours={"spike": WARN, "diverged": BAD, "plateau": INFO, "slow": WARN},
        width=24,
        empty="nothing trained yet",
    ),
)

_EFFICIENCY = (
    Panel(
        "Where the time goes",
        "percentunit",
        {"{{bucket}}": "rate(stoker_train_time_seconds_total{*}[1h])"},
        "Share of the last hour by what it was spent on. Steps count once a proven checkpoint holds them; "
        "those that none came to hold are redone.",
        width=16,
        stacked=True,
    ),
    Panel(
        "Goodput",
        "percentunit",
        {
            "of the run": "stoker_train_goodput_ratio{*}",
            "lost in the last hour": f"sum(rate(stoker_train_time_seconds_total{_LOST}[1h]))",
        },
        "Share of the run's time in steps that a proven checkpoint holds, and the share of the last hour "
        "lost to what is neither training, nor a wait for data, nor a halt.",
        maximum=1,
        empty="the run has not begun",
    ),
    Panel(
        "MFU",
        "percentunit",
        {"of the bf16 peak": "stoker_train_mfu_ratio{*}"},
        "Model FLOPs utilization: what the steps need, as a share of what the card can at most compute.",
        empty="nothing trained, or a device whose peak is not known",
    ),
    Panel(
        "Data wait",
        "s",
        {"last step": "stoker_train_data_wait_seconds{*}"},
        "Time that the last step waited for its data; near 0 while batches are prepared ahead.",
        empty="nothing trained yet",
    ),
    Panel(
        "Save stall",
        "s",
        {"last save": "stoker_train_save_stall_seconds{*}"},
        "Time that the last save kept the trainer from training, as the trainer measured it.",
        empty="nothing saved yet",
    ),
    Panel(
        "Memory of a step",
        "bytes",
        {"peak": "stoker_train_memory_bytes{*}"},
        "Most memory of tensors on the GPU in the last step; on a CPU the trainer's peak so far.",
        empty="nothing trained yet",
    ),
    Panel(
        "Allocation retries",
        "none",
        {"in this launch": "stoker_train_allocation_retries_total{*}"},
        "How often the GPU's allocator had to give memory back first; each costs time.",
        thresholds=((None, GOOD), (1, WARN)),
    ),
    Panel(
        "Micro-batch",
        "none",
        {"windows": "stoker_train_micro_batch{*}"},
        "Windows of a forward pass; halved where memory runs out.",
        empty="nothing trained yet",
    ),
)

_LIFE = (
    Panel(
        "Run",
        "none",
        {
            "{{state}}": "stoker_train_state{*}",
            "waits for data": "stoker_train_waiting_for_data{*}",
            "mirror away": "1 - stoker_checkpoint_mirror_up{*}",
        },
        "State of the run, whether it waits for data, and whether the mirror of its checkpoints is away.",
        kind="states",
        colours={**RUN_STATES, "waits for data": WARN, "mirror away": WARN},
    ),
    Panel(
        "Phase of the supervisor",
        "none",
        {"{{phase}}": "stoker_train_phase{*}"},
        "What the train supervisor does.",
        kind="states",
        colours=PHASES,
    ),
    Panel(
        "Phase of the trainer",
        "none",
        {"{{phase}}": "stoker_trainer_phase{*}"},
        "What the trainer says it does; none without a trainer.",
        kind="states",
        colours=TRAINER_PHASES,
    ),
    Panel(
        "Launches",
        "none",
        {
            "launches": "stoker_train_launches{*}",
            "without progress, in a row": "stoker_train_fruitless_launches{*}",
            "limit of those": "stoker_config_no_progress_launches{*}",
        },
        "Launches so far, and those in a row that ended without progress. At the limit the run is halted.",
    ),
    Panel(
        "Ends of launches",
        "none",
        {"{{class}}": "round(increase(stoker_train_restarts_total{*}[$__rate_interval])) > 0"},
        "Ends of launches by class.",
        empty="no launch ended",
    ),
    Panel(
        "Timeline and rollbacks",
        "none",
        {"timeline": "stoker_train_timeline{*}", "rollbacks": "stoker_train_rollbacks_total{*}"},
        "Each rollback begins a new timeline.",
    ),
    DATA_AHEAD,
    Panel(
        "Windows ahead",
        "short",
        {"planned": "stoker_plan_ahead_windows{*}"},
        "Windows planned beyond the trainer's position.",
    ),
    Panel(
        "Since the last step",
        "s",
        {
            "last step": SINCE_STEP,
            "hang limit": "stoker_config_hang_limit_seconds{*}",
        },
        "Time since the last step; above the limit the trainer hangs and is ended.",
        empty="nothing trained yet",
    ),
)

_CHECKPOINTS = (
    CHECKPOINT_AGE,
    Panel(
        "Seconds to save",
        "s",
        _quantiles("stoker_checkpoint_save_seconds"),
        "How long a checkpoint keeps the trainer from training.",
    ),
    Panel(
        "Seconds to prove",
        "s",
        _quantiles("stoker_checkpoint_proof_seconds"),
        "How long it takes to read a checkpoint back and prove it whole.",
    ),
    Panel(
        "Newest checkpoint",
        "short",
        {
            "proven": "stoker_train_checkpoint_step{*}",
            "on the mirror": "stoker_checkpoint_mirrored_step{*}",
        },
        "Step of the newest proven checkpoint, here and on the mirror.",
    ),
    Panel(
        "Mirror",
        "none",
        {
            "waiting": "stoker_checkpoint_mirror_waiting{*}",
            "failures": "stoker_checkpoint_mirror_failures_total{*}",
        },
        "Proven checkpoints still to be mirrored, and failed tries since the supervisor started.",
        empty=_MIRROR,
    ),
    Panel(
        "Quarantine, audit",
        "none",
        {
            "checkpoints set aside": "stoker_checkpoints_quarantined_total{*}",
            "findings of the last audit": "stoker_audit_findings{*}",
        },
        "Checkpoints that were not whole, since the supervisor started, and what the last kept audit found.",
        thresholds=((None, GOOD), (1, BAD)),
    ),
)

_EVALUATIONS = (
    Panel(
        "Evaluations",
        "none",
        {"{{suite}} {{metric}}": "stoker_eval_value{*}"},
        "What the last evaluation of each suite measured. Each metric has its own unit and direction.",
        empty="nothing evaluated yet",
        width=16,
    ),
    Panel(
        "Evaluated and promoted",
        "short",
        {
            "{{suite}}": "stoker_eval_step{*}",
            "promoted": "stoker_eval_promoted_step{*}",
            "failures": "stoker_eval_failures_total{*}",
        },
        "Step of the last evaluated checkpoint by suite, step of the promoted one, and failed evaluations.",
        empty="nothing evaluated yet",
        width=8,
    ),
)

_GPUS = (
    Panel(
        "GPU memory",
        "bytes",
        {
            "GPU {{gpu}} trainer": 'stoker_gpu_process_memory_bytes{*,process="trainer"}',
            "GPU {{gpu}} others": 'stoker_gpu_process_memory_bytes{*,process="other"}',
            "GPU {{gpu}} used": "stoker_gpu_memory_used_bytes{*}",
            "GPU {{gpu}} has": "stoker_gpu_memory_total_bytes{*}",
        },
        "Memory of each GPU: what the trainer and other processes hold, all that is used, what there is.",
        empty=_NO_GPU,
    ),
    Panel(
        "GPU utilisation",
        "percentunit",
        {"GPU {{gpu}}": "stoker_gpu_utilization_ratio{*}"},
        "Share of the time in which a kernel ran.",
        maximum=1,
        empty=_LACKS,
    ),
    Panel(
        "GPU power",
        "watt",
        {
            "GPU {{gpu}}": "stoker_gpu_power_watts{*}",
            "GPU {{gpu}} mean": "rate(stoker_gpu_energy_joules_total{*}[$__rate_interval])",
        },
        "Power now, and the mean from the energy counter.",
        empty=_LACKS,
    ),
    Panel(
        "GPU temperature",
        "celsius",
        {"GPU {{gpu}}": "stoker_gpu_temperature_celsius{*}"},
        "Temperature of each GPU.",
        width=6,
        empty=_LACKS,
    ),
    Panel(
        "GPU clock",
        "short",
        {"GPU {{gpu}}": "stoker_gpu_sm_clock_hertz{*}"},
        "Clock of the multiprocessors of each GPU, in hertz.",
        width=6,
        empty=_LACKS,
    ),
    Panel(
        "Clocks slowed down",
        "none",
        {"GPU {{gpu}} {{reason}}": 'stoker_gpu_clock_event{*,reason!="idle"} > 0'},
        "Why a GPU's clocks are lower than asked: power, heat, a brake.",
        width=6,
        kind="states",
        empty="no clock is slowed down",
    ),
    Panel(
        "GPUs present and expected",
        "none",
        {
            "present": "sum(stoker_gpu_present{*})",
            "expected": "stoker_gpus_expected{*}",
            "sampler up": "stoker_gpu_sampler_up{*}",
        },
        "A GPU that is expected and not present fell off the bus. The sampler asks the driver.",
        width=6,
        empty=_NO_GPU,
    ),
    Panel(
        "Xid errors",
        "none",
        {"GPU {{gpu}} {{class}}": "stoker_gpu_xid_total{*}"},
        "Errors that the driver reported: application (the program's fault) and hardware.",
        thresholds=((None, GOOD), (1, BAD)),
        empty=_NO_GPU,
    ),
    Panel(
        "ECC errors, row remaps",
        "none",
        {
            "GPU {{gpu}} {{kind}}": "stoker_gpu_ecc_errors_total{*}",
            "GPU {{gpu}} remap pending": "stoker_gpu_remap_pending{*}",
        },
        "Memory errors, corrected and not. A pending row remap wants a reset of the GPU.",
        empty=_LACKS,
    ),
    Panel(
        "Spill to main memory",
        "none",
        {"{{certainty}}": "stoker_gpu_spill{*}"},
        "On WSL2 a full GPU spills to main memory in silence, and steps get many times slower.",
        kind="states",
        colours={"certain": BAD, "suspected": WARN},
        empty="not WSL2",
    ),
)

TRAINING = Board(
    "training",
    "Training",
    "The run: losses, speed, checkpoints, restarts, GPUs.",
    (
        Row("Steps", _STEPS),
        Row("Efficiency", _EFFICIENCY),
        Row("The run's life", _LIFE),
        Row("Checkpoints", _CHECKPOINTS),
        Row("Evaluations", _EVALUATIONS),
        Row("GPUs", _GPUS),
    ),
)
