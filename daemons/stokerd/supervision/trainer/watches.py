"""The watches over a run that trains: its loss and its speed, by the rows of log/metrics.jsonl.

What stands is in run.json before its event: a supervisor that starts again tells nothing twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stoker.observe.gpus import Cards
from stoker.observe.machine import Pressure, PressureGauge
from stoker.store.errors import DataError, StorageError
from stoker.store.record import utc_now
from stoker.supervise.health.loss_watch import KINDS, Change, Episode, LossWatch
from stoker.supervise.health.speed_watch import SpeedWatch
from stoker.supervise.health.trainer_protocol import COUNTING
from stoker.supervise.policy import Fork, answer_spike
from stoker.supervise.run.step_rows import Row, StepRows
from stoker.supervise.state import Phase
from stokerd.supervision import policies
from stokerd.supervision.run import Run

LOOK_S = 1.0
PIECES = 4  # of the log, that a look may read: a log of 100 MB is known after two minutes
MEASURE_S = 60.0
GAP_S = 10.0  # a longer time between two looks: the machine or this process did not run
PRESSURES = ("cpu_some", "io_some", "memory_some", "steal", "idle_cpus")


class Watches:
    """Follows the run's log, tells what begins and ends, and answers a spike as the policy says."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows = StepRows(run.layout.metrics)
        self.loss, self.speed = LossWatch(), SpeedWatch()
        self._gauge, self._measure_at = PressureGauge(), 0.0
        self._pressure: Pressure | None = None
        self._launch = ""  # whose steps are the last minutes'
        self._is_excused = False  # the next rows have time in them that is no step's
        self._is_known = False  # what stands agrees with run.json: each change is told from here on
        self._passed: Episode | None = None  # a spike that began and ended between two looks
        self._look_at = 0.0

    def refresh(self, cards: Cards) -> None:
        """Takes in the rows written since the last look, as many as a look may read."""
        now = time.monotonic()
        if now < self._look_at or self.run.store.record is None:
            return
        self._note_pauses(now)
        self._look_at = now + LOOK_S
        # A log that cannot be read now, or timelines that are damaged: others tell that.
        with contextlib.suppress(StorageError, DataError):
            for _ in range(PIECES):
                if self._read(cards):
                    break
        self._answer_spike()

    def _read(self, cards: Cards) -> bool:
        """Takes in a piece of the log, and tells what changes with it; returns whether it was the last."""
        piece = self.rows.read(self.run.accounts.history())
        if piece.is_anew:
            self.loss, self.speed, self._is_known = LossWatch(), SpeedWatch(), False
        changes = [change for row in piece.rows for change in self._take(row)]
        if self._is_known:
            begun = {change.episode.first for change in changes if not change.is_end}
            ended = (change.episode for change in changes if change.is_end and change.episode.kind == "spike")
            self._passed = next((one for one in ended if one.first in begun), self._passed)
        self._is_excused = self._is_excused and not piece.rows
        try:
            self._tell(changes, is_last=piece.is_last)
            self._judge_speed(cards)
        except StorageError:
            self._is_known = False
            raise
        return piece.is_last

    def _take(self, row: Row) -> list[Change]:
        if self._is_excused:
            self.speed.skip(row)
        else:
            self.speed.add(row, is_live=self._is_known and self.run.state.live is not None)
        loss, place = row["loss"], row.get("position")
        is_number = isinstance(loss, int | float)
        return self.loss.add(row["step"], float(loss) if is_number else None, place)

    def _note_pauses(self, now: float) -> None:
        """Notes what makes a step long and the trainer not slow, and measures the machine meanwhile."""
        live = self.run.state.live
        is_gap = self._look_at > 0 and now - self._look_at > GAP_S
        if is_gap or (live is not None and (live.view.waits or live.view.phase in COUNTING)):
            self._is_excused = True
        if live is not None and live.launch.launch != self._launch:
            self._launch = live.launch.launch
            self.speed.interrupted()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_S
            self._pressure = self._gauge.sample()

    def _judge_speed(self, cards: Cards) -> None:
        """Tells when the trainer becomes slow, with what may be the cause, and when it is not any more."""
        speed, step = self.speed.now(), self.run.state.live and self.run.state.live.step
        told = "slow" in self.run.store.begun.watched
        if speed is None or not (speed.is_well if told else speed.is_slow):
            return
        words: dict[str, Any] = {"step": step, "usual": round(speed.usual)}
        words |= {"tokens_per_s": round(speed.tokens_per_s)}
        self._keep("slow", None if told else words | {"since": utc_now()})
        if told:
            self.run.events.record("speed_recovered", **words)
            return
        evidence = {"micro_batch": speed.micro_batch, "data_wait_share": round(speed.data_wait_share, 3)}
        shares = vars(self._pressure) if self._pressure is not None else {}
        evidence |= {name: round(shares[name], 3) for name in PRESSURES if shares.get(name) is not None}
        self.run.events.record("training_slow", **words, **evidence, gpus=cards.clocks())

    def _tell(self, changes: list[Change], *, is_last: bool) -> None:
        """Tells each change or, after the log was read anew, the difference from what run.json has."""
        if self._is_known:
            for change in changes:
                if change.is_end:
                    self._tell_end(change.episode.kind, step=change.step, loss=round(change.loss, 4))
                else:
                    self._tell_begin(change.episode)
        elif is_last:
            standing = self.loss.standing
            told = self.run.store.begun.watched
            for kind in KINDS:
                episode, before = standing.get(kind), told.get(kind)
                if before is not None and (episode is None or episode.first != before["first"]):
                    self._tell_end(kind)
                    before = None
                if episode is not None and before is None:
                    self._tell_begin(episode)
            self._is_known = True

    def _tell_begin(self, episode: Episode) -> None:
        self._keep(episode.kind, episode.words())
        self.run.events.record(f"loss_{episode.kind}", **episode.words())

    def _tell_end(self, kind: str, **words: Any) -> None:
        before = self.run.store.begun.watched.get(kind, {})
        self._keep(kind, None)
        if not words:
            words = {"message": "the run went back to before it"}
        self.run.events.record("loss_recovered", of=kind, first=before.get("first"), **words)

    def _keep(self, kind: str, body: Mapping[str, Any] | None) -> None:
        others = {name: one for name, one in self.run.store.begun.watched.items() if name != kind}
        self.run.store.change(watched=others if body is None else {**others, kind: dict(body)})

    def _answer_spike(self) -> None:
        """Decides, once for a spike, whether the run goes back; the trainer is then stopped."""
        run, watched = self.run, self.run.store.begun.watched
        spike, self._passed = self._passed or self.loss.standing.get("spike"), None
        is_asked = run.pipeline.supervise.on_spike == "rollback"
        if spike is None or not (is_asked and self._is_known) or "answer" in watched.get("spike", {}):
            return
        if run.state.phase is not Phase.TRAINING or run.store.begun.fork is not None:
            return
        answer = answer_spike(spike.first, spike.last, policies.facts(run), run.pipeline.supervise)
        changes: dict[str, Any] = {}
        if (told := watched.get("spike")) is not None:
            body = {**told, "last": spike.last, "answer": "rollback" if isinstance(answer, Fork) else answer}
            changes["watched"] = {**watched, "spike": body}
        if isinstance(answer, Fork):
            changes["fork"] = policies.fork_body(run, answer)
        run.store.change(**changes)
        if isinstance(answer, str):
            words = {"step": spike.step, "first": spike.first, "reason": answer}
            run.events.record("spike_left_alone", **words)
