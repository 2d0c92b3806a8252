"""Keeps the account of the run's time over restarts, and writes runs.jsonl."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.kit.events import Events
from stoker.store.errors import StorageError
from stoker.store.layout import RunLayout
from stoker.store.record import read_or_set_aside, utc_now, write_record
from stoker.supervise.health.exits import Exit
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.goodput import Goodput, bucket_of, read_account
from stoker.supervise.run.launch_ends import LaunchEnd, note_end, parse_end
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.record import RunRecord
from stoker.supervise.state import RunState
from stoker.supervise.trainer import Trainer

KEEP_S = 60.0  # what a kill -9 loses at most counts as down
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now_s() -> float:
    """Returns the seconds since this machine's boot, those asleep too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class GoodputBooks:
    """The account of a run's time in goodput.json, and the launch that is not in runs.jsonl yet."""

    def __init__(self, layout: RunLayout, quarantine: Path, events: Events, *, is_reloaded: bool) -> None:
        self._path, self._log, self._events = layout.goodput, layout.runs, events
        self._boot = BOOT_ID.read_text(encoding="ascii").strip()
        self.account = Goodput(now_s())
        self.launch: LaunchEnd | None = None
        self._before: Mapping[str, float] = {}  # the totals when the last line was written
        self._start: Mapping[str, float] = {}  # the totals when the supervisor started
        self._keep_at = 0.0
        if (body := read_or_set_aside(self._path, quarantine)) is not None:
            self._go_on(body, is_reloaded=is_reloaded)

    def _go_on(self, body: Mapping[str, Any], *, is_reloaded: bool) -> None:
        """Goes on from the books; the time since they were written counts as down, except over a reload.

        The wall clock tells it only where the machine has booted since: that clock may jump.
        """
        self.account = account = read_account(body["account"])
        self.launch = None if body["launch"] is None else parse_end(body["launch"])
        self._before = body["before"]
        self._start = body["start"] if is_reloaded else dict(account.totals)
        if is_reloaded:
            return
        now = now_s()
        down_s = now - account.at if body["boot"] == self._boot else time.time() - body["time_s"]
        if account.bucket is not None:
            account.totals["down"] += max(0.0, down_s)
        account.at, account.bucket = now, None

    def refresh(
        self, state: RunState, record: RunRecord | None, proven_step: int, *, evaluates: bool = False
    ) -> None:
        """Counts the time since the last look; call it each cycle and at each change of phase."""
        account, live = self.account, state.live
        is_over = record is None or record.finished is not None
        doing = live.view.doing if live is not None else None
        account.passed(now_s(), None if is_over else bucket_of(state.phase, doing, evaluates=evaluates))
        if live is not None and live.view.step is not None:
            account.told(live.view.step, live.view.data_wait_s or 0.0)
        account.proven(proven_step)
        if account.at >= self._keep_at:
            self.keep()

    def launched(self, launch: Launch) -> None:
        step = launch.resume_step
        self.launch = LaunchEnd(launch.launch, launch.timeline, step, begin=utc_now(), last_step=step)
        self.keep()

    def ended(self, trainer: Trainer, exit_: Exit) -> None:
        """Takes in the end of the launch; its line is written once it is known what it is worth."""
        if self.launch is not None:
            self.launch = replace(
                self.launch,
                last_step=trainer.step,
                end=utc_now(),
                exit_class=str(exit_.kind),
                detail=exit_.detail,
                evidence=trainer.evidence.body(),
            )
        self.keep()

    def settled(self, at: Checkpoint) -> None:
        """Takes in what the next launch goes on from, and writes the line of the one before."""
        self.account.settled(at.step)
        if self.launch is None:
            return
        spent = {name: total - self._before.get(name, 0.0) for name, total in self.account.totals.items()}
        seconds = {name: round(value, 3) for name, value in spent.items() if round(value, 3)}
        last = max(self.launch.last_step, at.step)
        one = replace(self.launch, seconds=seconds, last_step=last, proven_step=at.step)
        if damage := note_end(self._log, one):
            self._events.record("record_damaged", message=damage[0])
        self.launch, self._before = None, dict(self.account.totals)
        self.keep()

    def keep(self) -> None:
        """Writes the books; on a full disk the next minute tries again, and others tell of it."""
        self._keep_at = now_s() + KEEP_S
        if self.launch is not None and self.launch.end is None:
            self.launch = replace(self.launch, last_step=max(self.launch.last_step, self.account.step))
        body = {"v": 1, "boot": self._boot, "time_s": time.time(), "account": vars(self.account)}
        launch = None if self.launch is None else self.launch.body()
        with contextlib.suppress(StorageError):
            write_record(self._path, {**body, "launch": launch, "before": self._before, "start": self._start})

    def shown(self) -> dict[str, Any]:
        """Returns the account for status and metrics.

        `since_start` is for counters: a kill loses the last minute of the books, and a counter that falls by
        a little counts for Prometheus as one that began again, with all that it had.
        """
        since = {name: total - self._start.get(name, 0.0) for name, total in self.account.totals.items()}
        return {**self.account.figures(), "since_start": since}
