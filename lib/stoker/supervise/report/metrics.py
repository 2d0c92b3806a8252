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
}


class Meters:
    """Gauges from the snapshot, counters from what happens."""

    def __init__(self, metrics: Metrics) -> None:
        self._gauges = {key: metrics.gauge(name, doc) for key, (name, doc) in _GAUGES.items()}
        self._processed = metrics.counter(
            "train_tokens_total", "Tokens trained on since the supervisor started, repeated ones too."
        )
        self._history = metrics.gauge(
            "train_history_tokens", "Tokens in the run's history; it falls at a rollback and after a crash."
        )
        self._at: tuple[str | None, int] = (None, 0)  # the launch shown last, and its tokens
        self._speed = metrics.gauge(
            "train_tokens_per_second", "Speed of the last step; 0 while nothing is trained."
        )
        self._checkpoint_step = metrics.gauge(
            "train_checkpoint_step", "Step of the newest proven checkpoint."
        )
        self._checkpoint_age = metrics.gauge(
            "train_checkpoint_age_seconds", "Seconds since the newest checkpoint was proven."
        )
        self._state = metrics.gauge("train_state", "1 for the state the run is in.", labels=("state",))
        self._launches = metrics.gauge("train_launches", "Launches of the run so far.")
        self.restarts = metrics.counter(
            "train_restarts_total", "Ends of launches by class.", labels=("class",)
        )
        self._mirrored_step = metrics.gauge(
            "checkpoint_mirrored_step", "Step of the newest checkpoint copied to the mirror."
        )
        self._mirror_waiting = metrics.gauge(
            "checkpoint_mirror_waiting", "Proven checkpoints still to be copied to the mirror."
        )
        self.mirror_failures = metrics.counter(
            "checkpoint_mirror_failures_total", "Tries at the mirror that failed."
        )
        self.quarantined = metrics.counter(
            "checkpoints_quarantined_total", "Checkpoints convicted and moved away."
        )

    def show(self, snapshot: Mapping[str, Any], checkpoint_age_s: float | None) -> None:
        """Set every gauge the snapshot has a value for."""
        for key, gauge in self._gauges.items():
            if snapshot.get(key) is not None:
                gauge.set(snapshot[key])
        self._count_tokens(snapshot["launch"], snapshot["tokens"] or 0)
        self._speed.set(snapshot["tokens_per_s"] or 0)
        self._launches.set(snapshot["launches"])
        for state in ("waiting", "running", "finished", "failed"):
            self._state.labels(state).set(1 if snapshot["run_state"] == state else 0)
        if snapshot["checkpoint"] is not None and snapshot["checkpoint"]["proven"]:
            self._checkpoint_step.set(snapshot["checkpoint"]["step"])
        if (mirror := snapshot.get("mirror")) is not None:
            self._mirror_waiting.set(mirror["waiting"])
            if mirror["step"] is not None:
                self._mirrored_step.set(mirror["step"])
        if checkpoint_age_s is not None:
            self._checkpoint_age.set(checkpoint_age_s)

    def _count_tokens(self, launch: str | None, tokens: int) -> None:
        """Before its first word a launch is shown with the tokens of the checkpoint that it resumes from."""
        self._history.set(tokens)
        if launch is not None and launch == self._at[0]:
            self._processed.inc(max(0, tokens - self._at[1]))
        self._at = (launch, tokens)
