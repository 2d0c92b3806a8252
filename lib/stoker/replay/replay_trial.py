"""Trains a recorded history again: the real trainer under its guard, phase by phase."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import CheckpointEntry, remove_checkpoint, sweep_leftovers
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock, read_holder
from stoker.kit.loop import Waiter
from stoker.replay.replay_phases import Phase
from stoker.replay.replay_site import Site, link_sets, own_checkpoints
from stoker.store import errors
from stoker.store.errors import DataError, LockHeld, StokerError, StorageError, UnavailableError
from stoker.store.record import new_id, read_record, write_record
from stoker.supervise.health.exits import GuardedEnd, classify
from stoker.supervise.health.guarded import GuardedTrainer
from stoker.supervise.health.trainer_protocol import TrainerView, heard, parse
from stoker.supervise.run.launch_record import LEFT_OUT, TRAINER, Launch, trainer_environment
from stoker.supervise.run.record import parse_record

KEPT = 2  # the replay's newest checkpoints
SEAL_EVERY_S = 600.0  # upper limit of the work that a stopped replay loses
TURN_S = 0.5

Say = Callable[[str], None]
KNOWN = (DataError, StorageError, errors.Transient, errors.ConfigError, UnavailableError)


class Stopped(Exception):
    """A signal asked the replay to stop; its progress is sealed."""


class Trial:
    """One call's work on a replay: `say` gets messages for people, `progress` each new trainer state."""

    def __init__(
        self,
        site: Site,
        pipeline: Pipeline,
        environ: Mapping[str, str],
        *,
        socket: Path,
        say: Say,
        progress: Callable[[TrainerView], None],
    ) -> None:
        self.site, self.pipeline, self.environ, self.socket = site, pipeline, environ, socket
        self.say, self.progress = say, progress
        self.phases = site.phases()
        self.base = read_record(site.base)
        self._proven: set[str] = set()

    def run(self) -> None:
        """Trains to the last step; raises Stopped after a signal, or the StokerError of a failed launch."""
        if (holder := read_holder(self.site.run.rank0_lock)) is not None:
            raise LockHeld(f"{self.site.run.rank0_lock} is held by {holder} or its sealer; it ends by itself")
        sweep_leftovers(self.site.run.checkpoints)
        waiter = Waiter()
        waiter.signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        error: StokerError | None = None
        with contextlib.closing(waiter):
            while (step := self.newest_step()) < self.site.to:
                is_moved = bool(link_sets(self.site, self.pipeline))
                # A set moved from hot to warm while it was read: the steps since the last seal are lost.
                if error is not None and not (is_moved and isinstance(error, DataError)):
                    raise error
                phase = next(phase for phase in self.phases if phase.first <= step + 1 <= phase.last)
                end, view = self.launch(phase, step, waiter)
                if waiter.received:
                    raise Stopped
                has_ended_well = end.code == 0 and self.newest_step() > step
                error = None if has_ended_well else failure(end, view)

    def newest_step(self) -> int:
        """Returns the step of the replay's newest proven checkpoint; 0 without one."""
        newest = self.newest()
        return newest.step if newest else 0

    def newest(self) -> CheckpointEntry | None:
        """Returns the replay's newest proven checkpoint; removes damaged ones, which are made again."""
        for found in own_checkpoints(self.site):
            proof = None if found.path.name in self._proven else prove_checkpoint(found.path)
            if proof is None or proof.verdict == "proven":
                self._proven.add(found.path.name)
                return found
            if proof.verdict == "unreadable":
                raise StorageError(f"{found.path} cannot be read now: {proof.reason}; check the disk")
            self.say(f"{found.path.name} is not whole ({proof.reason}); it is made again")
            remove_checkpoint(found.path)
        return None

    def launch(self, phase: Phase, step: int, waiter: Waiter) -> tuple[GuardedEnd, TrainerView]:
        """Runs a launch from the newest checkpoint to the phase's end; returns its end and last state."""
        newest = self.newest() if step else None
        launch = Launch(
            launch=new_id(),
            timeline=phase.timeline,
            resume_from=newest.path if newest else None,
            resume_step=step,
            notify_socket=self.socket,
            until=phase.last,
        )
        write_record(self.site.run.launch, self.body(launch, phase))
        self.say(f"steps {step + 1:,} to {phase.last:,} on timeline {phase.timeline}")
        lock = Lock.acquire(self.site.run.trainer_lock, purpose="stoker replay")
        trainer = GuardedTrainer.launched(
            TRAINER,
            environ=trainer_environment(self.environ, launch, self.site.run),
            lock=lock,
            stop_time_s=self.pipeline.supervise.stop_time,
            notify_socket=self.socket,
            waiter=waiter,
        )
        with contextlib.closing(trainer):
            return self._watch(trainer, waiter, launch)

    def _watch(
        self, trainer: GuardedTrainer, waiter: Waiter, launch: Launch
    ) -> tuple[GuardedEnd, TrainerView]:
        now = time.monotonic()
        view = TrainerView(launch.launch, now, now)
        is_stopping = False
        while (end := trainer.poll()) is None:
            waiter.wait(TURN_S)
            if waiter.received and not is_stopping:  # the signal may have come before this launch
                is_stopping = True
                self.say("stopping: the trainer is asked to save")
                trainer.stop()
            for datagram in trainer.drain():
                if (said := parse(datagram, launch.launch)) is not None:
                    view = heard(view, said, time.monotonic())
                    if "checkpoint" in said:
                        self.prune()
            self.progress(view)
        return end, view

    def body(self, launch: Launch, phase: Phase) -> dict[str, Any]:
        """Returns launch.json: the recorded run's, with the phase's settings and the replay's paths."""
        held, later = self.base["heldout"], {}
        if held is not None:
            record, held = parse_record(self.base["run_record"]), {**held, "file": str(self.site.run.heldout)}
            later = record.heldouts_upto(phase.settings["seq_len"], self.site.run)
        return {
            **self.base,
            **dict.fromkeys(LEFT_OUT),
            **phase.settings,
            "launch": launch.launch,
            "timeline": phase.timeline,
            "replay": True,
            "until": launch.until,
            "evaluate": {**phase.settings["evaluate"], "patience": None},  # the record says where it ended
            "checkpoint": {"every_s": SEAL_EVERY_S, "every_steps": None, "busy": "wait"},
            "cache": str(self.site.run.root / "cache"),
            "shards_root": str(self.site.shards),
            "tokenizer_file": str(self.site.tokenizer),
            "heldout": held,
            "heldouts": (),
            **later,
        }

    def prune(self) -> None:
        """Removes the replay's checkpoints except the newest and the checkpoint to compare."""
        compared = self.site.compared["step"] if self.site.compared is not None else None
        for found in list(own_checkpoints(self.site))[KEPT:]:
            if found.step != compared:
                remove_checkpoint(found.path)


def failure(end: GuardedEnd, view: TrainerView) -> StokerError:
    """Returns the error, with its exit code, of a launch that did not end as it should."""
    why = classify(end, is_asked=False, is_hung=False, last_words=view.error).detail
    error = next((error for error in KNOWN if error.exit_code == end.code), UnavailableError)
    advice = "" if error is errors.ConfigError else "; the same command continues from its newest checkpoint"
    return error(f"the trainer failed: {why}{advice}")
