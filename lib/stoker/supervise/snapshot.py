"""What the supervisor shows of its run: the one source of `stoker status`, STATUS= and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.config.units import format_count, format_duration
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, left_after
from stoker.store.errors import DataError
from stoker.supervise.checkpoints import Checkpoint
from stoker.supervise.protocol import TrainerView
from stoker.supervise.record import RunRecord


def snapshot(
    *,
    run: str,
    steps: int,
    tokens_per_step: int,
    doing: str,
    record: RunRecord | None,
    view: TrainerView | None,
    checkpoint: Checkpoint | None,
    plan: Plan | None,
    trainer_pid: int | None,
    trainer_rss_bytes: int | None,
    at_rest: bool,
    mirror: Mapping[str, Any] | None = None,
    timeline: int = 0,
) -> dict[str, Any]:
    """The run now; steps, losses and rates are the trainer's last words, without one the checkpoint's."""
    said: dict[str, Any] = {
        name: getattr(view, name, None)
        for name in (
            "step",
            "tokens",
            "loss",
            "lr",
            "grad_norm",
            "tokens_per_s",
            "val_loss",
            "phase",
            "position",
        )
    }
    if checkpoint is not None:
        for name in ("step", "tokens", "loss", "val_loss", "position"):
            if said[name] is None:
                said[name] = checkpoint.body.get(name)
    rate, step = said["tokens_per_s"], said["step"] or 0
    return {
        **said,
        "run": run,
        "timeline": timeline,
        "run_state": record.state if record else "waiting",
        "at_rest": at_rest,
        "finished": record.finished if record else None,
        "reason": record.reason if record else None,
        "doing": doing,
        "steps": steps,
        "eta_s": max(0, steps - step) * tokens_per_step / rate if rate and view is not None else None,
        "launch": view.launch if view else None,
        "launches": record.launches if record else 0,
        "trainer_pid": trainer_pid,
        "trainer_rss_bytes": trainer_rss_bytes,
        "checkpoint": {"name": checkpoint.path.name, "step": checkpoint.step} if checkpoint else None,
        "mirror": mirror,
        "plan_entries": len(plan.entries) if plan else 0,
        "plan_windows": plan.windows if plan else 0,
        "plan_windows_ahead": _ahead(plan, said["position"]),
    }


def status_text(shown: dict[str, Any]) -> str:
    """One line for systemd's STATUS: what it does, how far, how fast."""
    if shown["launch"] is None or shown["step"] is None:
        return str(shown["doing"])
    parts = [f"{shown['doing']}: step {shown['step']} of {shown['steps']}"]
    if shown["loss"] is not None:
        parts.append(f"loss {shown['loss']:.4f}")
    if shown["tokens_per_s"]:
        parts.append(f"{format_count(int(shown['tokens_per_s']))} tokens/s")
    if shown["eta_s"] is not None:
        parts.append(f"{format_duration(shown['eta_s'])} left")
    if shown["checkpoint"] is not None:
        parts.append(f"checkpoint {shown['checkpoint']['step']}")
    return ", ".join(parts)


def _ahead(plan: Plan | None, position: Sequence[int] | None) -> int | None:
    if plan is None:
        return None
    try:
        return left_after(plan, Position.parse(list(position)) if position else START)
    except DataError:  # the trainer's word is a moment ahead of what was read here
        return None
