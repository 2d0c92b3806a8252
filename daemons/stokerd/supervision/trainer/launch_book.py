"""What is recorded of a launch: launch.json, and a line of launches.jsonl for each settings of its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.checkpoints.format import known_step
from stoker.store.record import read_record, utc_now, write_record
from stoker.supervise.run import launch_record
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.numerics_record import differences, of_checkpoint, was_halved
from stokerd.supervision.run import Run


class LaunchBook:
    """The record of the launch that runs."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.body: dict[str, Any] = {}  # of launch.json

    def begin(self, launch: Launch) -> dict[str, Any]:
        """Records a launch and counts it; returns launch.json's body."""
        run, step, body = self.run, launch.resume_step, self._body_of(launch)
        before, _ = launch_record.read_launches(run.layout.launches)
        write_record(run.layout.launch, body)
        self._note(body, step)
        self.body = body
        run.keep_milestones()
        run.store.launching()  # last: a launch that a full disk prevents is not counted
        words: dict[str, Any] = {"launch": launch.launch, "resume_step": step}
        words |= {"resume_step": known_step(run.newest.body)} if run.newest else {}
        words |= {} if launch.until is None else {"until": launch.until}
        run.events.record("trainer_launched", **words)
        if change := launch_record.phase_change(before[-1].settings if before else {}, body):
            words = {"step": step, "phase": body.get("phase", ""), "message": change[1]}
            words["windows_ahead"] = run.accounts.windows_ahead(run.at)
            words["windows_of_another_length"] = run.accounts.windows_of_another_length(run.at)
            run.events.record("phase_began" if change[0] else "phase_changed", **words)
        return body

    def adopt(self) -> None:
        """Goes on with the launch of this process's image before."""
        self.body = read_record(self.run.layout.launch)

    def note_numerics(self) -> None:
        """Records the numerics that the trainer told; steps after them are made by these."""
        run, trainer = self.run, self.run.state.live
        if trainer is None or not trainer.numerics:
            return
        for step, numerics in trainer.numerics:
            before = self.body["numerics"]
            if numerics != before:
                body = {**self.body, "numerics": numerics}
                self._note(body, step)
                write_record(run.layout.launch, body)
                self.body = body
            if step and before is not None and (changes := differences(before, numerics)):
                run.events.record("bits_end_here", step=step, message="; ".join(changes))
            if before is not None and was_halved(before, numerics):
                sizes = {"before": before["micro_batch"], "micro_batch": numerics["micro_batch"]}
                run.events.record("micro_batch_lowered", step=step, **sizes)
        run.change(trainer=replace(trainer, numerics=()))

    def _body_of(self, launch: Launch) -> dict[str, Any]:
        """Returns launch.json's body."""
        run = self.run
        resume = launch.resume_from if run.kind.follows_plan else None  # else it has no numerics
        return run.kind.launch_body(
            launch,
            run.pipeline,
            run.planner.pin(),
            run.store.begun,
            steps=run.accounts.last_step,  # as of `over` in this cycle
            numerics=of_checkpoint(resume) if resume else None,
        )

    def _note(self, body: dict[str, Any], step: int) -> None:
        """Notes in the log of launches that the steps after this one have these settings."""
        line = launch_record.launched_body(body, resume_step=step, time=utc_now())
        if damage := launch_record.note_launch(self.run.layout.launches, line):
            self.run.events.record("record_damaged", message=damage[0])
