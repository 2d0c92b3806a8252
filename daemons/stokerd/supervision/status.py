"""What the supervisor shows of its run: the one source of `stoker status`, STATUS= and the metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.metrics import Figure
from stoker.kit.workers.parent import Bound
from stoker.observe.processes import GUARD, process_figures
from stoker.store.errors import StokerError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.supervise.health.exits import ExitClass
from stoker.supervise.health.liveness import limit_s
from stoker.supervise.health.loss_watch import KINDS
from stoker.supervise.health.trainer_protocol import PHASES
from stoker.supervise.run.goodput import BUCKETS
from stoker.supervise.run.progress import waiting_words
from stoker.supervise.run.record import RunState
from stoker.supervise.state import Phase
from stokerd.common.observer import Observer
from stokerd.supervision.jobs import ACTIVITIES
from stokerd.supervision.jobs.evaluation import shown as shown_evaluations
from stokerd.supervision.jobs.gpus import GPU_FIGURES, STATE
from stokerd.supervision.jobs.hook import RESULTS
from stokerd.supervision.run import Run
from stokerd.supervision.snapshot import run_progress, snapshot, status_text

PROGRESS_EVERY_S = 3600.0  # between two run_progress events
AUDIT_EVERY_S = 60.0  # between two looks at the record of the last audit
RUN_STATE = {"state": get_args(RunState)}
WORKER = {"activity": tuple(ACTIVITIES)}
ENDS = ("finished", "failed", "killed", *get_args(Bound))
PHASE = {"phase": tuple(Phase)}
TRAINER_PHASE = {"phase": tuple(sorted(PHASES))}
FIGURES = (
    Figure("train_step", "Last step the trainer reported or a proven checkpoint holds.", "step"),
    Figure("train_horizon_steps", "Last step of the run.", "steps"),
    Figure(
        "train_last_step_timestamp_seconds",
        "Unix time at which a training step was last made.",
        "figures.last_step_at",
    ),
    Figure("train_eta_seconds", "Seconds until the run's last step.", "eta_s"),
    Figure("train_loss", "Training loss of the last step.", "loss"),
    Figure("train_val_loss", "Last held-out loss.", "val_loss"),
    Figure("train_val_step", "Step at which the last held-out loss was measured.", "val_step"),
    Figure("train_loss_watch", "1 for what is wrong with the loss.", "figures.loss_watch.*", {"kind": KINDS}),
    Figure("train_nonfinite_total", "Losses and gradient norms that were not finite.", "figures.nonfinite"),
    Figure("train_learning_rate", "Learning rate of the last step.", "lr"),
    Figure("train_gradient_norm", "Norm of the gradient before clipping.", "grad_norm"),
    Figure(
        "trainer_rss_bytes",
        "Resident bytes of the trainer, without its sealers.",
        "processes.trainer.rss_bytes",
    ),
    Figure("trainer_phase", "1 for what the trainer does.", "figures.trainer_phase.*", TRAINER_PHASE),
    Figure("plan_ahead_windows", "Windows planned beyond the trainer's position.", "plan_windows_ahead"),
    Figure("plan_ahead_seconds", "Seconds that the planned data lasts.", "figures.ahead_s"),
    Figure("train_waiting_for_data", "1 while the run waits for data.", "figures.waits"),
    Figure(
        "train_waiting_since_timestamp_seconds",
        "Unix time since which the run waits for data.",
        "figures.waits_since",
    ),
    Figure("train_launches", "Launches of the run so far.", "launches"),
    Figure(
        "train_fruitless_launches",
        "Latest launches in a row without a new proven checkpoint.",
        "figures.fruitless",
    ),
    Figure("train_history_tokens", "Tokens in the run's history; falls at a rollback.", "figures.tokens"),
    Figure(
        "train_tokens_total", "Tokens trained on since the start, repeated too.", "figures.trained_tokens"
    ),
    Figure(
        "train_tokens_per_second",
        "Tokens trained on each second; 0 while nothing is trained.",
        "figures.tokens_per_s",
    ),
    Figure("train_slow", "1 while the trainer is slower than it usually is.", "figures.slow"),
    Figure("train_mfu_ratio", "Share of the card's bf16 peak that the model uses (MFU).", "mfu"),
    Figure("train_data_wait_seconds", "Seconds that the last step waited for its data.", "data_wait_s"),
    Figure("train_save_stall_seconds", "Seconds that the last save kept the trainer.", "save_stall_s"),
    Figure("train_memory_bytes", "Peak device bytes of the last step; RSS peak on a CPU.", "memory_bytes"),
    Figure(
        "train_allocation_retries_total", "Allocations on the device tried again.", "figures.alloc_retries"
    ),
    Figure("train_micro_batch", "Windows of one forward pass.", "micro_batch"),
    Figure("train_halted", "1 while the run is halted.", "figures.halted"),
    Figure(
        "train_time_seconds_total",
        "Seconds of the run by use since the start.",
        "goodput.since_start.*",
        {"bucket": BUCKETS},
    ),
    Figure("train_goodput_ratio", "Share of time in steps that a proven checkpoint holds.", "goodput.ratio"),
    Figure("train_state", "1 for the state the run is in.", "figures.state.*", RUN_STATE),
    Figure("train_phase", "1 for what the supervisor does.", "figures.phase.*", PHASE),
    Figure("train_timeline", "The run's timeline.", "timeline"),
    Figure("train_rollbacks_total", "Rollbacks of the run: each begins a timeline.", "timeline"),
    Figure(
        "train_restarts_total",
        "Ends of launches by class.",
        "figures.restarts.*",
        {"class": tuple(ExitClass)},
    ),
    Figure(
        "train_hook_runs_total", "Ends of the on_checkpoint command.", "figures.hooks.*", {"result": RESULTS}
    ),
    Figure("train_checkpoint_step", "Step of the newest proven checkpoint.", "figures.proven_step"),
    Figure(
        "train_checkpoint_timestamp_seconds",
        "Unix time at which the newest proven checkpoint was sealed.",
        "figures.sealed_at",
    ),
    Figure(
        "train_saves_refused",
        "Newest saves of an external trainer that were not sealed, in a row.",
        "figures.saves_refused",
    ),
    Figure("eval_step", "Step that was evaluated last.", "evaluations.step.*", {"suite": ()}),
    Figure("eval_value", "What was measured last.", "evaluations.value.*.*", {"suite": (), "metric": ()}),
    Figure("eval_verdict", "1 for what is shown.", "evaluations.verdict.*.*", {"metric": (), "verdict": ()}),
    Figure("eval_promoted_step", "Step of the promoted checkpoint.", "evaluations.promoted_step"),
    Figure("eval_failures_total", "Evaluations that failed.", "figures.evaluation_failures"),
    Figure("eval_due_timestamp_seconds", "Unix time since which one is due.", "evaluations.due_at"),
    Figure("checkpoint_mirror_enabled", "1 where checkpoints are mirrored.", "figures.has_mirror"),
    Figure("checkpoint_mirror_up", "1 while the mirror can be used.", "figures.mirror_up"),
    Figure("checkpoint_mirrored_step", "Step of the newest checkpoint on the mirror.", "mirror.step"),
    Figure("checkpoint_mirror_waiting", "Proven checkpoints still to be mirrored.", "mirror.waiting"),
    Figure("checkpoint_mirror_failures_total", "Failed tries at the mirror.", "figures.mirror_failures"),
    Figure("checkpoints_quarantined_total", "Checkpoints that were not whole.", "figures.quarantined"),
    Figure("audit_findings", "Findings of the audit that was kept last.", "figures.audit.findings"),
    Figure("audit_timestamp_seconds", "Unix time at which the audit was last kept.", "figures.audit.at"),
    Figure(
        "config_checkpoint_interval_seconds",
        "Seconds between two checkpoints, as set.",
        "figures.config.every_s",
    ),
    Figure(
        "config_hang_limit_seconds",
        "Seconds without progress until a trainer is ended.",
        "figures.config.hang_s",
    ),
    Figure("config_stop_time_seconds", "Seconds that a trainer may take to save.", "figures.config.stop_s"),
    Figure("config_hold_seconds", "Seconds that the plan waits for a file.", "figures.config.hold_s"),
    Figure("config_no_progress_launches", "Launches in a row that halt the run.", "figures.config.launches"),
    Figure("train_workers", "Workers at work.", "figures.workers.*", WORKER),
    Figure("train_worker_ends_total", "Ends of workers.", "figures.ends.*.*", {**WORKER, "class": ENDS}),
    *GPU_FIGURES,
    *process_figures(TRAIN_SUPERVISOR),
)


class Status:
    """Shows the run once a cycle, and notes a wait for data."""

    def __init__(self, run: Run) -> None:
        self._run, self._observer = run, Observer(run.context)
        self._report_at = time.monotonic() + PROGRESS_EVERY_S
        self.last: tuple[str | None, int] = (None, 0)  # the launch shown last, and its tokens
        # Counters that may begin above 0: no sample may have 0 before.
        shown = {"timeline": run.accounts.timeline, "goodput": run.goodput.shown()}
        run.context.metrics.show(FIGURES, shown)
        self._audit: Mapping[str, float] = {}
        self._audit_at = 0.0

    def show(self) -> None:
        """Writes status, metrics and heartbeat; measures a wait for data."""
        run, state, live, now = self._run, self._run.state, self._run.state.live, time.monotonic()
        is_held = run.store.record is not None and bool(run.store.record.held)
        is_stopping = run.context.stopping or is_held or bool(state.rollbacks)
        is_ending = live is not None and (live.stop_asked_at is not None or is_stopping)
        waits, doing = state.phase is Phase.WAITING, state.doing
        if is_ending:
            doing = "waiting for the trainer to save and end"
        elif live is not None:
            waits = live.view.waits
            doing = waiting_words(run.planner.why) if waits else "training"
        wait = run.accounts.wait
        if wait.note(doing if waits else "", now):
            run.events.record("data_wait", waiting_for=wait.what, since=wait.since)
        job = run.jobs.get("warm")
        is_copy = job is not None and job.kind == "sync" and isinstance(job.subject, Mirrored)
        copying = job.subject.step if job is not None and is_copy else None
        shown = snapshot(run, doing, is_ending=is_ending, copying=copying)
        self._count_tokens(shown["launch"], shown["tokens"] or 0)
        if now >= self._report_at and (fields := run_progress(shown)):
            self._report_at = now + PROGRESS_EVERY_S
            run.events.record("run_progress", **fields)
        if now >= self._audit_at:
            self._audit_at = now + AUDIT_EVERY_S
            self._audit = read_audit(run.pipeline.layout.audit, self._audit)
        more: dict[str, Any] = {
            "figures": figures(run, shown) | {"audit": self._audit},
            "gpus": STATE.of(run).shown(),
            "evaluations": shown_evaluations(run),
            "workers": {job.kind: 1 for job in run.jobs.values()},
        }
        more |= {"goodput": run.goodput.shown(), "proven": run.checkpoints.proven_names}
        guards = {live.guard.pid: GUARD} if live is not None else {}
        run.context.beat(shown | more | self._observer.sample(guards, status=more), status_text(shown))

    def _count_tokens(self, launch: str | None, tokens: int) -> None:
        # Before its first word a launch is shown with the tokens of the checkpoint that it resumes from.
        if launch is not None and launch == self.last[0]:
            self._run.counted.trained_tokens += max(0, tokens - self.last[1])
        self.last = (launch, tokens)


def figures(run: Run, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what only the metrics show."""
    train, supervise, wait, rate = run.pipeline.train, run.pipeline.supervise, run.accounts.wait, None
    if run.accounts.headway.windows_per_s and shown["plan_windows_ahead"] is not None:
        rate = shown["plan_windows_ahead"] / run.accounts.headway.windows_per_s
    waited_s = wait.lasted_s(time.monotonic())
    return {
        **vars(run.counted),
        "restarts": dict(run.counted.restarts),
        "workers": {kind: kind in {job.kind for job in run.jobs.values()} for kind in ACTIVITIES},
        "ends": {kind: {how: run.counted.ends[f"{kind} {how}"] for how in ENDS} for kind in ACTIVITIES},
        "tokens": shown["tokens"] or 0,
        "tokens_per_s": shown["tokens_per_s"] or 0,
        "alloc_retries": shown["alloc_retries"] or 0,
        "state": {state: shown["run_state"] == state for state in RUN_STATE["state"]},
        "phase": {phase: run.state.phase == phase for phase in PHASE["phase"]},
        "trainer_phase": {phase: shown["phase"] == phase for phase in TRAINER_PHASE["phase"]},
        "halted": shown["halted"] is not None,
        "slow": "slow" in shown["watched"],
        "loss_watch": {kind: kind in shown["watched"] for kind in KINDS},
        "fruitless": _fruitless(run),
        "proven_step": run.newest.step if run.newest else None,
        "sealed_at": run.newest.sealed_at if run.newest else None,
        "ahead_s": rate,
        "waits": bool(wait.what),
        "waits_since": round(time.time() - waited_s) if wait.what else None,
        "has_mirror": run.mirror is not None,
        "mirror_up": run.mirror and run.mirror.trouble is None,
        "config": {
            "every_s": train.checkpoint.every if run.kind.follows_plan else None,  # it alone knows
            "hang_s": limit_s(supervise, shown["phase"] or "train"),
            "stop_s": supervise.stop_time,
            "hold_s": run.pipeline.plan.hold,
            "launches": supervise.no_progress_launches,
        },
    }


def _fruitless(run: Run) -> int:
    """Returns how many launches in a row ended without progress."""
    record, live = run.store.record, run.state.live
    if record is None:
        return 0
    if live is None:
        return record.fruitless
    if run.at.step > live.launch.resume_step:
        return 0
    return max(0, record.fruitless - 1)  # the record counts the one that runs, which may still progress


def read_audit(path: Path, before: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the number of findings of the last kept audit, and when it was made; {} without one.

    `before` is what the last call returned: the record of an audit with many findings is large.
    """
    try:
        at = path.stat().st_mtime
        if at == before.get("at"):
            return before
        return {"findings": len(read_record(path)["findings"]), "at": at}
    except (OSError, StokerError):  # none was kept, or another user's: no daemon depends on it
        return {}
