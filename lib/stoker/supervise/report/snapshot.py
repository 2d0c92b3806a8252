"""What the supervisor shows of its run: the one source of `stoker status`, STATUS= and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.config.units import format_count, format_duration
from stoker.plan.growth import ENOUGH
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, left_after
from stoker.store.errors import DataError
from stoker.supervise.health.trainer_protocol import STEPPING
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.gates import DataWait
from stoker.supervise.run.record import RunRecord
from stoker.supervise.state import Trainer


def snapshot(
    *,
    run: str,
    steps: int,
    global_batch: int,
    windows_per_s: float | None,
    doing: str,
    wait: DataWait,
    ending: bool,
    record: RunRecord | None,
    live: Trainer | None,
    checkpoint: Checkpoint | None,
    sealed: Checkpoint | None,
    plan: Plan | None,
    why_no_more: str,
    at_rest: bool,
    mirror: Mapping[str, Any] | None = None,
    timeline: int = 0,
) -> dict[str, Any]:
    """The run now; steps and losses are the last words of a trainer that lives, else the newest checkpoint's.

    `live` is a trainer that runs; `checkpoint` is proven, `sealed` need not be. Speed and time left are
    shown only of a trainer that trains, and is not `ending`. `why_no_more`: why the plan has no more entries.
    """
    view = live.view if live is not None else None
    newest, proven = checkpoint, True
    if sealed is not None and (checkpoint is None or sealed.step > checkpoint.step):
        newest, proven = sealed, False
    said: dict[str, Any] = {
        name: getattr(view, name, None)
        for name in ("step", "tokens", "loss", "lr", "grad_norm", "val_loss", "phase", "position")
    }
    if newest is not None:
        for name in ("step", "tokens", "loss", "val_loss", "position"):
            if said[name] is None:
                said[name] = newest.body.get(name)
    trains = view is not None and view.phase in STEPPING and not wait.what and not ending
    windows_left = max(0, steps - (said["step"] or 0)) * global_batch
    return {
        **said,
        "run": run,
        "timeline": timeline,
        "run_state": record.state if record and not wait.what else "waiting",
        "at_rest": at_rest,
        "finished": record.finished if record else None,
        "reason": record.reason if record else None,
        "doing": f"{doing}, since {wait.since}" if wait.what else doing,
        "waiting_for": wait.what or None,
        "waiting_since": wait.since or None,
        "steps": steps,
        "tokens_per_s": view.tokens_per_s if view and trains else None,
        "eta_s": windows_left / windows_per_s if windows_per_s and trains else None,
        "launch": view.launch if view else None,
        "launches": record.launches if record else 0,
        "trainer_pid": live.pid if live else None,
        "trainer_rss_bytes": live.rss_bytes if live else 0,
        "checkpoint": {"name": newest.path.name, "step": newest.step, "proven": proven} if newest else None,
        "mirror": mirror,
        "plan_entries": len(plan.entries) if plan else 0,
        "plan_windows": plan.windows if plan else 0,
        "plan_windows_ahead": _ahead(plan, said["position"]),
        "plan_waits_for": None if why_no_more in ("", ENOUGH) else why_no_more.removeprefix("waiting for "),
    }


# What a trainer that trains does where it makes no steps, by the phase it tells.
_PHASES = {
    "load": "loading the trainer",
    "compile": "compiling the model",
    "eval": "evaluating the held-out loss",
    "checkpoint": "saving a checkpoint",
}


def status_text(shown: dict[str, Any]) -> str:
    """One line for systemd's STATUS: what it does, how far, how fast."""
    doing = str(shown["doing"])
    if doing == "training":
        doing = _PHASES.get(shown["phase"], doing)
    if shown["launch"] is None or shown["step"] is None:
        return doing
    parts = [f"{doing}: step {shown['step']} of {shown['steps']}"]
    if shown["loss"] is not None:
        parts.append(f"loss {shown['loss']:.4f}")
    if shown["tokens_per_s"]:
        parts.append(f"{format_count(int(shown['tokens_per_s']))} tokens/s")
    if shown["eta_s"] is not None:
        parts.append(f"{format_duration(shown['eta_s'])} left")
    if shown["checkpoint"] is not None:
        parts.append(f"checkpoint {shown['checkpoint']['step']}")
    return ", ".join(parts)


def run_progress(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the hourly event run_progress; {} while no step is made."""
    if not shown["tokens_per_s"]:
        return {}
    told = {name: shown[name] for name in ("step", "steps", "loss", "val_loss")}
    left_s = None if shown["eta_s"] is None else round(shown["eta_s"])
    return {**told, "tokens_per_s": round(shown["tokens_per_s"]), "eta_s": left_s}


def _ahead(plan: Plan | None, position: Sequence[int] | None) -> int | None:
    if plan is None:
        return None
    try:
        return left_after(plan, Position.parse(list(position)) if position else START)
    except DataError:  # the trainer's word is a moment ahead of what was read here
        return None
