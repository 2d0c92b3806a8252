"""The mirror of the checkpoints, as the end of a job on warm changes it: its record, then the event.

No trouble on warm stops training: it is an event, a line in the status, and another try, without end.
"""

from __future__ import annotations

import time
from functools import singledispatchmethod
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.config.schema import BackoffPolicy
from stoker.kit.events import Events
from stoker.plan.timelines import parse_timelines, restore_timelines
from stoker.store.errors import DataError
from stoker.store.log import read_log_data
from stoker.supervise import actions as do
from stoker.supervise.decide import delay_s
from stoker.supervise.mirror.state import PRUNE_AGAIN_S, MirrorState
from stoker.supervise.report.metrics import Meters
from stokerd.supervision.run import Run, jitter

AWAIT = BackoffPolicy(first=0.5, most=15.0)  # between two tries at what a launch waits for


class MirrorEffects:
    """Writes down what a job on warm, or its failure, makes true."""

    def __init__(self, run: Run, events: Events, meters: Meters) -> None:
        self.run, self.events, self.meters = run, events, meters

    @property
    def mirror(self) -> MirrorState:
        """The mirror's state; only a mirrored run has such jobs."""
        assert self.run.mirror is not None
        return self.run.mirror

    @singledispatchmethod
    def apply(self, action: Any) -> None:
        """Carry out an action of the mirror; each is registered below by its type."""
        raise TypeError(f"{action} is no action")

    def worked(self, kind: str) -> None:
        """Something was done on warm: earlier trouble with it is over."""
        if self.mirror.worked(kind):
            self.events.record("mirror_recovered", doing=kind)

    @apply.register
    def failed(self, failed: do.MirrorFailed) -> None:
        """Warm cannot be used now; what a launch or a rollback waits for is waited for, or given up."""
        job, reason, state = failed.job, failed.reason, self.run.state
        self.meters.mirror_failures.inc()
        if self.mirror.failed(job.kind, reason, time.monotonic()):
            message = "training goes on; it is tried again until it succeeds"
            self.events.record("mirror_failed", "warning", doing=job.kind, reason=reason, message=message)
        match job:
            case do.FetchCopy(copy, is_for_rollback=True):
                problem = f"{copy.name} cannot be fetched from the mirror now: {reason}"
                self.run.change(look="failed", look_problem=problem)
            case do.ListMirror(is_awaited=True, must=False):
                problem = f"the mirror cannot be looked at now: {reason}; ask again later"
                self.run.change(look="failed", look_problem=problem)
            case do.RestoreHeldout():
                self._wait(self.run.layout.heldout.name, reason)
            case do.MirrorJob(is_awaited=True):
                newest = self.run.newest
                has = f"step {newest.step} is the newest proven here" if newest else "nothing is proven here"
                if not state.look_failures:
                    message = (
                        f"{has}, and warm may hold a newer checkpoint: the run waits for it. If warm is lost "
                        "for good, set train.checkpoint.mirror: false and start again"
                    )
                    self.events.record("mirror_awaited", "warning", reason=reason, message=message)
                self._wait(f"a newer checkpoint ({has})", reason)

    def _wait(self, what: str, reason: str) -> None:
        state = self.run.state
        seconds = delay_s(AWAIT, state.look_failures, jitter())
        doing = f"waiting for warm, which may hold {what}: {reason}; trying"
        self.run.state = state.paused(seconds, doing, time.monotonic())
        self.run.change(look_failures=state.look_failures + 1)

    @apply.register
    def _listed(self, found: do.MirrorListed) -> None:
        self.worked("list")
        run, warm = self.run, self.run.pipeline.warm_layout
        if run.run_id(or_of_newest=True) is None and len(found.foreign) > 1:
            place = warm.checkpoints(run.pipeline.train.run) if warm else ""
            raise DataError(
                f"{place} holds checkpoints of the runs {', '.join(found.foreign)}, and "
                f"{run.layout.record} is missing; move away those that are not to be gone on with"
            )
        self.mirror.looked(found.copies, time.monotonic())
        if found.foreign and run.run_id() is not None and not self.mirror.is_foreign_reported:
            self.mirror.is_foreign_reported = True
            message = "the mirror holds checkpoints of other runs of this name; they are left alone"
            self.events.record("mirror_foreign", "warning", run_ids=list(found.foreign), message=message)
        if not found.is_awaited:
            return
        run.change(look="done", look_failures=0)
        if found.timelines is not None:  # nothing trains now
            copy = parse_timelines(read_log_data(found.timelines.encode()), "timelines.jsonl in the mirror")
            if lost := restore_timelines(run.layout.timelines, copy):
                self.events.record("timelines_restored", "warning", forks=lost, source="mirror")

    @apply.register
    def _copied(self, made: do.CopyMade) -> None:
        self.worked("copy")
        copy, path = made.copy, f"checkpoints/{checkpoint_name(made.copy.step)}"
        self.mirror.copied(copy)
        self.events.record("checkpoint_mirrored", step=copy.step, path=path, copy=copy.name)
        if made.set_aside:
            words = {"copy": copy.name, "moved_to": made.set_aside}
            self.events.record("mirror_copy_bad", "warning", **words, replaced=True)

    @apply.register
    def _source_differs(self, source: do.SourceDiffers) -> None:
        self.run.checkpoints.forget(source.name)
        proofs = self.run.state.proofs
        self.run.change(proofs={name: proofs[name] for name in proofs if name != source.name})
        message = "it is proven again before anything is made of it"
        words = {"path": f"checkpoints/{source.name}", "reason": source.reason}
        self.events.record("mirror_source_differs", "warning", **words, message=message)

    @apply.register
    def _pruned(self, gone: do.CopiesPruned) -> None:
        self.worked("prune")
        self.mirror.gone(gone.names)
        self.mirror.prune_at = 0.0 if gone.names else time.monotonic() + PRUNE_AGAIN_S
        if gone.names:
            self.events.record("mirror_pruned", names=list(gone.names))

    @apply.register
    def _bad(self, bad: do.CopyBad) -> None:
        self.worked("fetch")
        self.mirror.gone([bad.name])
        words = {"copy": bad.name, "state": bad.state, "reason": bad.reason}
        self.events.record("mirror_copy_bad", "warning", **words, moved_to=bad.set_aside)

    @apply.register
    def _fetched(self, fetched: do.CopyFetched) -> None:
        self.worked("fetch")
        copy, name = fetched.job.copy, checkpoint_name(fetched.body["step"])
        words = {"step": copy.step, "path": f"checkpoints/{name}", "copy": copy.name}
        message = "it was not whole, or not there, on this disk"
        self.events.record("checkpoint_fetched", "warning", **words, message=message)
        if fetched.logs:
            self.events.record("run_logs_restored", "warning", paths=list(fetched.logs), source="mirror")
        self.run.checkpoints.proven(name, fetched.body, fetched.digest, time.monotonic())
        if fetched.job.is_for_rollback:
            self.run.checkpoints.kept.add(name)
        self.run.change(proofs={**self.run.state.proofs, name: "proven"}, look_failures=0)

    @apply.register
    def _restored(self, restored: do.HeldoutRestored) -> None:
        self.worked("heldout")
        if restored.state == "brought":
            self.events.record("heldout_restored", "warning", source="mirror")
        else:
            message = f"the mirror's copy is {restored.state} too"
            self.events.record("heldout_lost", "error", message=message)
        self.run.change(is_heldout_seen=True, look_failures=0)
