"""Launches the trainer under its guard, reads its messages, stops it, and records its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker.kit.handover import Handover
from stoker.kit.lock import Lock
from stoker.kit.process import ProcessId, children_tree
from stoker.observe.machine import MemoryWatch
from stoker.plan.log import Segment
from stoker.store.errors import StorageError, Transient
from stoker.store.record import new_id
from stoker.supervise.actions import EndLaunch, StopTrainer, Suspect
from stoker.supervise.health import output
from stoker.supervise.health.evidence import Evidence, free_bytes
from stoker.supervise.health.exits import ExitClass, GuardedEnd
from stoker.supervise.health.guarded import GuardedTrainer
from stoker.supervise.health.liveness import Stillness, work_of
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch, ema_change, read_launches
from stoker.supervise.run.memorization import newest_gap, read_tail
from stoker.supervise.trainer import Trainer
from stokerd.supervision.run import Run
from stokerd.supervision.trainer.launch_book import LaunchBook
from stokerd.supervision.trainer.output import TrainerOutput
from stokerd.supervision.trainer.silence import SilenceRecorder

EVIDENCE_S = 5.0
JUDGED_LINES = 200  # of the output, by which an end is judged
TOLD_LINES = 20  # of the output, in the event of an end
FORESEEN = (ExitClass.FINISHED, ExitClass.STOPPED)  # ends that need no evidence
EXTEND_S = 60.0  # that a save which gets on may take longer than the unit's time for a stop
GAP_S = 10.0  # a longer cycle means that the machine or this process did not run


class TrainerControl:
    """Holds the handles of the running trainer and acts on it."""

    def __init__(self, run: Run) -> None:
        self.run, self.context = run, run.context
        self.guarded: GuardedTrainer | None = None
        self.output: TrainerOutput | None = None  # of an external trainer
        self._book, self._silences = LaunchBook(run), SilenceRecorder(run)
        self._heard_at = time.monotonic()
        self._told_gap = 0.0  # of memorization, in nats
        self._memory = MemoryWatch()

    @property
    def pids(self) -> set[int]:
        """The guard's process id, while it runs."""
        return {self.guarded.pid} if self.guarded is not None else set()

    def launch(self, lock: Lock) -> Trainer:
        """Launches the trainer from the newest proven checkpoint; its guard takes over the lock.

        Raises Transient where no process, descriptor or room for its socket is to be had; nothing is counted.
        """
        run, now = self.run, time.monotonic()
        launch = Launch(
            launch=new_id(),
            timeline=run.accounts.timelines().current,
            resume_from=run.newest.path if run.newest else None,
            resume_step=run.at.step,
            until=run.accounts.until(run.at),
            notify_socket=self.context.runtime.notify_socket(run.pipeline.train.run),
            reads_output=not run.kind.follows_plan,
        )
        self.output = TrainerOutput(run, launch) if launch.reads_output else None
        body = self._book.begin(launch)
        with contextlib.suppress(OSError):  # the launch after this one tries again
            launches, _ = read_launches(run.layout.launches)
            output.prune(run.layout.log, [one.launch for one in launches])
            if words := ema_change(launches):
                run.events.record("ema_changed", **words)
        run.data.needed = {}  # all proven; a trainer's open file survives that its set leaves hot
        kills, headroom_bytes = self._memory.tree_kills(), self._memory.sample().headroom_bytes
        started = run.kind.program(
            run.pipeline,
            launch,
            run.layout,
            os.environ,
            micro_batch=body["micro_batch"],
            resumes_from=run.newest.body if run.newest else None,
        )
        try:
            self.guarded = GuardedTrainer.launched(
                started.command,
                environ=started.environ,
                directory=started.directory,
                lock=lock,
                stop_time_s=run.pipeline.supervise.stop_time,
                notify_socket=launch.notify_socket,
                waiter=self.context.waiter,
                output=run.layout.output(launch.launch),
            )
        except OSError as problem:
            self.close()
            run.store.forgive_launch()
            raise Transient(f"the trainer cannot be started: {problem}") from problem
        guard, view = ProcessId.of(self.guarded.pid), TrainerView(launch.launch, now, now, phase_at=now)
        return Trainer(
            launch,
            guard,
            view,
            Stillness(now, now),
            sample_at=now + EVIDENCE_S,
            evidence=Evidence(headroom_bytes=headroom_bytes, last_step=launch.until or body["steps"]),
            oom_kills=(kills,),
            stop_time_s=run.pipeline.supervise.stop_time,
        )

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors by which this process's next image goes on with the launch."""
        return self.guarded.descriptors if self.guarded is not None else {}

    def handed_over(self) -> dict[str, Any]:
        """Returns what it needs beside them."""
        return self.guarded.handed_over() if self.guarded is not None else {}

    def adopt(self, handover: Handover) -> None:
        """Goes on with the launch of this process's image before."""
        trainer = self.run.state.live
        if trainer is None:
            return
        self._book.adopt()
        self.guarded = GuardedTrainer.adopted(
            trainer.guard,
            handover.work["trainer"],
            handover.descriptors,
            notify_socket=trainer.launch.notify_socket,
            waiter=self.context.waiter,
        )
        self.guarded.trainer_pid = trainer.pid
        if trainer.launch.reads_output:
            self.output = TrainerOutput(self.run, trainer.launch, trainer)

    def hear(self) -> GuardedEnd | None:
        """Takes in the trainer's messages and work; returns its end once its whole tree is gone."""
        gap_s = time.monotonic() - self._heard_at
        self._heard_at += gap_s
        trainer, guarded = self.run.state.live, self.guarded
        if trainer is None or guarded is None:
            return None
        end = guarded.poll()  # before the words: all messages of an ended trainer have then arrived
        now = time.monotonic()
        trainer = replace(self._after_words(trainer, guarded.drain(), now, end), pid=guarded.trainer_pid)
        if trainer.view.phase == "wait-data" and self._lacks_data(trainer):
            trainer = trainer.believed()
        if now >= trainer.sample_at:
            work = work_of(process.pid for process in children_tree(guarded.pid))
            trainer = trainer.sampled(work, self._memory.tree_kills(), now, next_at=now + EVIDENCE_S)
            if self.context.stopping and trainer.stillness.worked_at == now:  # it saves
                self.context.notifier.extend_timeout(EXTEND_S)
        if end is not None:
            trainer = self._with_evidence(trainer, end)
        self.run.change(trainer=trainer.excused(now) if gap_s > GAP_S else trainer)
        with contextlib.suppress(StorageError):  # the state disk is full: the next call tries again
            self._book.note_numerics()
        return end

    def listen(self) -> bool:
        """Takes in the trainer's words alone; returns whether they tell of steps and no more.

        Else a whole cycle is due. At a hundred words a second a cycle for each would be a tenth of a core.
        """
        before, guarded = self.run.state.live, self.guarded
        if before is None or guarded is None:
            return False
        trainer = self._after_words(before, guarded.drain(), time.monotonic())
        self.run.change(trainer=trainer)
        return trainer.view.doing == before.view.doing and not (trainer.numerics or trainer.told)

    def _after_words(
        self, before: Trainer, datagrams: Sequence[bytes], now: float, end: GuardedEnd | None = None
    ) -> Trainer:
        trainer = before.after_words(datagrams, now)
        self._measure(before, trainer)
        if self.output is not None:
            before, trainer = trainer, self.output.poll(trainer, datagrams, now, is_last=end is not None)
            if trainer is not before:  # else its own words would count twice
                self._measure(before, trainer)
        return trainer

    def _lacks_data(self, trainer: Trainer) -> bool:
        """Returns whether the plan has no batch left for a trainer that says that it waits for one."""
        run = self.run
        if not run.kind.follows_plan:
            return False  # no plan is known: the limit on the phase is for its own data
        left = run.accounts.windows_left(trainer.position or run.at.position)
        return left < int(self._book.body["global_batch"])

    def _with_evidence(self, trainer: Trainer, end: GuardedEnd) -> Trainer:
        run = self.run
        with contextlib.suppress(StorageError):  # the end is told without it
            run.checkpoints.note_sealed(run.accounts.history())  # nothing of the launch seals any more
        return trainer.ended(
            end,
            self._memory.tree_kills(),
            sealed_step=run.checkpoints.sealed.step if run.checkpoints.sealed else None,
            headroom_after_bytes=self._memory.sample().headroom_bytes,
            micro_batch=trainer.view.micro_batch or (self._book.body["numerics"] or {}).get("micro_batch"),
            free_bytes=free_bytes(run.layout.checkpoints),
            lines=tuple(self._lines(trainer, JUDGED_LINES)),
            # An external trainer that tells no step may have made them all.
            last_step=None if trainer.is_read and trainer.view.step is None else trainer.evidence.last_step,
        )

    def _measure(self, before: Trainer, after: Trainer) -> None:
        """Counts and records what the trainer's last words tell."""
        run = self.run
        for seconds in after.steps_s:
            run.timings.step.observe(seconds)
        for seconds in after.saves_s:
            run.timings.save.observe(seconds)
        run.told += after.told
        if after.unknown and not before.unknown and after.launch.reads_output:
            run.events.record("words_unknown", launch=after.launch.launch, words=list(after.unknown))
        for why in after.saves_failed:
            run.events.record("checkpoint_failed", message=why, step=after.step)
            run.counted.unsaved = after.launch.timeline, after.step or 0, why
        for why in after.saves_in_place:
            run.events.record("checkpoint_in_place", message=why, step=after.step)
        if after.view.val_loss != before.view.val_loss:
            self._look_for_memorization(after)
        run.counted.nonfinite += after.view.nonfinite - before.view.nonfinite
        if after.step > before.step:
            run.counted.last_step_at = time.time()

    def _look_for_memorization(self, trainer: Trainer) -> None:
        """Records a held-out loss far over the loss on text read again; once, and when it is worse."""
        position, entries = trainer.position, self.run.planner.plan.entries
        entry = entries[position.entry] if position and position.entry < len(entries) else None
        epoch = entry.epoch if isinstance(entry, Segment) else 0
        gap = newest_gap(read_tail(self.run.layout.metrics), trainer.launch.timeline)
        if gap is not None and gap.is_suspected(epoch=epoch, told=self._told_gap):
            self._told_gap = gap.nats
            self.run.events.record("memorization_suspected", **gap.words(epoch))

    def suspect(self, action: Suspect) -> None:
        """Records that the trainer shows no progress, or, without a reason, that it does again."""
        trainer, guarded = self._running()
        if action.why:
            self._silences.record_silence("trainer_suspect", trainer, guarded.pid, action.why)
        self.run.change(trainer=replace(trainer, is_suspected=bool(action.why)))

    def stop(self, action: StopTrainer) -> None:
        """Asks the trainer to finish its step, seal and end; or kills a guard that does not end."""
        trainer, guarded = self._running()
        launch = trainer.launch.launch
        if action.kill_guard:
            self.run.events.record("guard_stuck", launch=launch, pid=guarded.pid)
            guarded.kill()
        else:
            if action.hung:
                self._silences.record_silence("trainer_hung", trainer, guarded.pid, action.hung)
                trainer = replace(trainer, is_hung=True)
            self.run.events.record("trainer_stop_asked", launch=launch, step=trainer.step)
            guarded.stop()
        self.run.change(trainer=replace(trainer, stop_asked_at=time.monotonic()))

    def ended(self, action: EndLaunch) -> None:
        """Records the end of a launch."""
        run, exit_, (trainer, _) = self.run, action.exit, self._running()
        self.close()
        run.accounts.interrupted()
        run.goodput.ended(trainer, exit_)
        run.counted.restarts[exit_.kind] += 1
        words = {"launch": trainer.launch.launch, "exit_class": str(exit_.kind), **trainer.evidence.body()}
        words |= {"level": "info"} if exit_.kind in FORESEEN else self._printed(trainer)
        words |= {"step": trainer.step, "exit_code": action.exit_code}
        run.events.record("trainer_exited", message=exit_.detail, **words)
        doing = f"the trainer ended: {exit_.detail}"
        if action.is_forgiven:
            with contextlib.suppress(StorageError):  # one launch more counts as fruitless
                run.store.forgive_launch()
            doing = f"stopped at step {trainer.step}: {exit_.detail}"
        run.change(exit=exit_, doing=doing)

    def _printed(self, trainer: Trainer) -> dict[str, Any]:
        """Returns where the trainer's output is, and its last lines."""
        lines = list(trainer.evidence.lines[-TOLD_LINES:])
        path = self.run.layout.output(trainer.launch.launch)
        return {"output": str(path), "last_lines": lines} if lines else {}

    def _lines(self, trainer: Trainer, count: int) -> list[str]:
        """Returns the last lines of the trainer's output."""
        lines = output.last_lines(self.run.layout.output(trainer.launch.launch), count)
        return output.without_secrets(lines, os.environ)

    def close(self) -> None:
        """Closes the handles; asks a trainer that still runs to save and end."""
        if self.guarded is not None:
            self.guarded.close()
            self.guarded = None
        if self.output is not None:
            self.output.close()
            self.output = None

    def _running(self) -> tuple[Trainer, GuardedTrainer]:
        assert self.run.state.trainer is not None and self.guarded is not None
        return self.run.state.trainer, self.guarded
