"""The run as it is now, for `stoker status`, STATUS= and the hourly event."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.checkpoints.format import known_step
from stoker.config.units import format_count, format_duration
from stoker.plan.growth import ENOUGH
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, left_after
from stoker.store.errors import DataError
from stoker.supervise.health.trainer_protocol import STEPPING
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.supervision.run import Run

REFUSED_REMEDY = "a crash would cost it: docs/trainers.md says what a checkpoint must be"
UNREAD_S = 60.0  # without a step in a trainer's output
UNREAD = (
    "running, no step recognised in its output: set train.external.step, or use the client (docs/trainers.md)"
)


def snapshot(run: Run, doing: str, *, is_ending: bool, copying: int | None = None) -> dict[str, Any]:
    """Returns the run as it is now; steps and losses are the last words of a trainer that runs, else the
    newest checkpoint's.

    Speed and time left are shown only of a trainer that trains and is not ending. `copying` is the step that
    is being mirrored.
    """
    record, live, train = run.store.record, run.state.live, run.pipeline.train
    accounts, plan, wait = run.accounts, run.planner.plan, run.accounts.wait
    view = live.view if live is not None else None
    proven, newest = run.newest, run.checkpoints.sealed
    if newest is None or (proven is not None and newest.step <= proven.step):
        newest = proven
    said: dict[str, Any] = {
        name: getattr(view, name, None)
        for name in (
            *("step", "tokens", "loss", "lr", "grad_norm", "val_loss", "phase", "position"),
            *("mfu", "data_wait_s", "save_stall_s", "memory_bytes", "alloc_retries", "micro_batch"),
        )
    }
    said["val_step"] = None
    if evaluated := accounts.evaluated(view and (view.launch, view.phase, view.val_loss)):
        said["val_step"], said["val_loss"] = evaluated
    if newest is not None:
        for name in ("step", "tokens", "loss", "val_loss", "position"):
            if said[name] is None:
                said[name] = known_step(newest.body) if name == "step" else newest.body.get(name)
    has_plan = run.kind.follows_plan
    timeline, failed_step, why_unsaved = run.counted.unsaved
    is_unsaved = timeline == accounts.timeline and failed_step > (newest.step if newest else -1)
    trouble = f"the checkpoint at step {failed_step} failed: {why_unsaved}" if is_unsaved else None
    if run.counted.saves_refused:
        trouble = f"the newest save is not sealed: {run.counted.save_refused}; {REFUSED_REMEDY}"
    trains = view is not None and view.phase in STEPPING and not wait.what and not is_ending
    windows_left = train.windows(said["step"] or 0, accounts.last_step or 0)
    windows_per_s, why = accounts.headway.windows_per_s, run.planner.why
    return {
        **said,
        "run": train.run,
        "timeline": accounts.timeline,
        "timeline_reason": accounts.forked or None,
        "run_state": record.state if record and not wait.what else "waiting",
        "at_rest": run.state.is_at_rest,
        "finished": record.finished if record else None,
        "reason": record.reason if record else None,
        "halted": record.halted if record else None,
        "paused": record.paused if record else None,
        "watched": _watched(run),
        "doing": f"{doing}, since {wait.since}" if wait.what else doing,
        "waiting_for": wait.what or None,
        "waiting_since": wait.since or None,
        "steps": accounts.last_step,
        "train_phase": train.at(live.launch.resume_step if live else run.at.step).name or None,
        "tokens_per_s": view.tokens_per_s if view and trains else None,
        "mfu": view.mfu if view and trains else None,
        "eta_s": windows_left / windows_per_s if windows_per_s and trains else None,
        "launch": view.launch if view else None,
        "launches": record.launches if record else 0,
        "steps_from": (live.read_as or "nothing" if live.is_read else "messages") if live else None,
        "unread": live is not None and _is_unread(live, time.monotonic()),
        "trainer_pid": live.pid if live else None,
        "next_launch_s": _next_launch_s(run.state, time.monotonic()),
        "checkpoint": newest
        and {"name": newest.path.name, "step": known_step(newest.body), "proven": newest is proven},
        "trouble": trouble,
        "mirror": run.mirror and run.mirror.status(copying),
        "plan_entries": len(plan.entries) if has_plan else None,
        "plan_windows": plan.windows if has_plan else None,
        "plan_windows_ahead": _ahead(plan, said["position"]) if has_plan else None,
        "plan_waits_for": None if why in ("", ENOUGH) else why.removeprefix("waiting for "),
    }


def _next_launch_s(state: RunState, now: float) -> float | None:
    """Returns how long the delay before the next launch still takes; None outside of one."""
    return round(max(0.0, state.retry_at - now), 1) if state.phase is Phase.BACKOFF else None


def _is_unread(live: Trainer, now: float) -> bool:
    """Returns whether a trainer's output has told no step for so long that it may be long past loading."""
    return (
        live.is_read
        and not live.read_as
        and live.view.phase == "load"
        and now - live.view.phase_at > UNREAD_S
    )


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
    if doing == "training" and shown["unread"]:
        doing = UNREAD
    elif doing == "training":
        doing = _PHASES.get(shown["phase"], doing)
    if shown["launch"] is None or shown["step"] is None:
        return doing
    of = f" of {shown['steps']}" if shown["steps"] is not None else ""
    parts = [f"{doing}: step {shown['step']}{of}"]
    if shown["loss"] is not None:
        parts.append(f"loss {shown['loss']:.4f}")
    if shown["tokens_per_s"]:
        parts.append(f"{format_count(int(shown['tokens_per_s']))} tokens/s")
    if shown["eta_s"] is not None:
        parts.append(f"{format_duration(shown['eta_s'])} left")
    if shown["checkpoint"] is not None:
        step = shown["checkpoint"]["step"]
        parts.append(f"checkpoint {'of an unknown step' if step is None else step}")
    if shown["trouble"]:
        parts.append(shown["trouble"])
    return ", ".join(parts)


def run_progress(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the hourly event run_progress; {} while no step is made."""
    if not shown["tokens_per_s"]:
        return {}
    details = {name: shown[name] for name in ("step", "steps", "loss", "val_loss", "val_step")}
    left_s = None if shown["eta_s"] is None else round(shown["eta_s"])
    return {**details, "tokens_per_s": round(shown["tokens_per_s"]), "eta_s": left_s}


def _ahead(plan: Plan, position: Sequence[int] | None) -> int | None:
    try:
        return left_after(plan, Position.parse(list(position)) if position else START)
    except DataError:  # the trainer's word is a moment ahead of what was read here
        return None


def _watched(run: Run) -> dict[str, Any]:
    """Returns what stands of loss and speed; nothing is slow while nothing is trained."""
    watched = run.store.record.watched if run.store.record is not None else {}
    return {kind: one for kind, one in watched.items() if kind != "slow" or run.state.live is not None}
