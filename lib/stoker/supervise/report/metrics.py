"""The supervisor's metrics: names in one place, set from the same snapshot that `stoker status` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.kit.metrics import Metrics

_GAUGES = {
    "step": ("train_step", "Last step the trainer reported or a proven checkpoint holds."),
    "steps": ("train_horizon_steps", "Last step of the run."),
    "loss": ("train_loss", "Training loss of the last step."),
    "val_loss": ("train_val_loss", "Last held-out loss."),
    "lr": ("train_learning_rate", "Learning rate of the last step."),
    "grad_norm": ("train_gradient_norm", "Norm of the gradient before clipping."),
    "trainer_rss_bytes": ("trainer_rss_bytes", "Resident memory of the trainer and what it started."),
    "plan_windows_ahead": ("plan_ahead_windows", "Windows planned beyond the trainer's position."),
    "launches": ("train_launches", "Launches of the run so far."),
    "history": (
        "train_history_tokens",
        "Tokens in the run's history; falls at a rollback and after a crash.",
    ),
    "speed": ("train_tokens_per_second", "Speed of the last step; 0 while nothing is trained."),
    "checkpoint_step": ("train_checkpoint_step", "Step of the newest proven checkpoint."),
    "checkpoint_age": ("train_checkpoint_age_seconds", "Seconds since the newest checkpoint was proven."),
    "mirrored_step": ("checkpoint_mirrored_step", "Step of the newest checkpoint copied to the mirror."),
    "mirror_waiting": ("checkpoint_mirror_waiting", "Proven checkpoints still to be copied to the mirror."),
}


class Meters:
    """Gauges from the snapshot, counters from what happens."""

    def __init__(self, metrics: Metrics) -> None:
        self._gauges = {key: metrics.gauge(name, doc) for key, (name, doc) in _GAUGES.items()}
        self._processed = metrics.counter(
            "train_tokens_total", "Tokens trained on since the supervisor started, repeated ones too."
        )
        self._at: tuple[str | None, int] = (None, 0)  # the launch shown last, and its tokens
        self._state = metrics.gauge("train_state", "1 for the state the run is in.", labels=("state",))
        self.restarts = metrics.counter(
            "train_restarts_total", "Ends of launches by class.", labels=("class",)
        )
        self.mirror_failures = metrics.counter(
            "checkpoint_mirror_failures_total", "Tries at the mirror that failed."
        )
        self.quarantined = metrics.counter(
            "checkpoints_quarantined_total", "Checkpoints convicted and moved away."
        )

    def show(self, snapshot: Mapping[str, Any], checkpoint_age_s: float | None) -> None:
        """Set every gauge the snapshot has a value for."""
        launch, tokens = snapshot["launch"], snapshot["tokens"] or 0
        checkpoint, mirror = snapshot["checkpoint"] or {}, snapshot["mirror"] or {}
        values = {
            **snapshot,
            "history": tokens,
            "speed": snapshot["tokens_per_s"] or 0,
            "checkpoint_step": checkpoint.get("step") if checkpoint.get("proven") else None,
            "checkpoint_age": checkpoint_age_s,
            "mirrored_step": mirror.get("step"),
            "mirror_waiting": mirror.get("waiting"),
        }
        for key, gauge in self._gauges.items():
            if values.get(key) is not None:
                gauge.set(values[key])
        for state in ("waiting", "running", "finished", "failed"):
            self._state.labels(state).set(1 if snapshot["run_state"] == state else 0)
        # Before its first word a launch is shown with the tokens of the checkpoint that it resumes from.
        if launch is not None and launch == self._at[0]:
            self._processed.inc(max(0, tokens - self._at[1]))
        self._at = (launch, tokens)
