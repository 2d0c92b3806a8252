"""The services a daemon's main function gets: configuration, log, events, metrics, event loop, heartbeat."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.kit.disk_reserve import Reserve
from stoker.kit.events import Events
from stoker.kit.log import Log
from stoker.kit.loop import Waiter
from stoker.kit.metrics import Metrics
from stoker.kit.process import ProcessId
from stoker.kit.systemd import Notifier
from stoker.store.files import write_atomic
from stoker.store.layout import runtime_dir
from stoker.store.record import RecordDamaged, set_aside, utc_now

STOP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))
BEAT_S = 1.0  # the shortest time between two status writes, unless systemd's watchdog needs them more often


class DaemonContext:
    """A running daemon; its story works, calls beat(), and returns its exit code soon after `stopping`.

    `files_list` is the path given with --files-list.
    """

    def __init__(
        self, name: str, pipeline: Pipeline, waiter: Waiter, *, once: bool, files_list: str | None = None
    ) -> None:
        self.name, self.pipeline, self.waiter = name, pipeline, waiter
        self.once, self.files_list = once, files_list
        self.layout, self.runtime = pipeline.layout, pipeline.runtime
        self.runtime.create()
        self.log, self.metrics = Log(name, pipeline.name), Metrics(name, pipeline.name)
        self.events = Events(self.layout, name, pipeline.name, self.log, self.metrics)
        self.notifier = Notifier()
        self.reserve = Reserve(self.layout.ballast(name), self.events)
        self._since, self._started = utc_now(), time.monotonic()
        self._me = ProcessId.of(os.getpid())
        self._is_ready = self._is_status_failing = False
        self._next_beat, self._beat_s = 0.0, BEAT_S
        self._last: tuple[dict[str, Any], str] = ({}, "starting")
        self._shown: tuple[dict[str, Any], str] | None = None
        if self.notifier.watchdog_interval_s is not None:  # half of it at most, says sd_watchdog_enabled(3)
            waiter.longest_s = self.notifier.watchdog_interval_s / 2
            self._beat_s = min(BEAT_S, waiter.longest_s / 2)

    @property
    def stopping(self) -> bool:
        """Returns whether TERM or INT has come, also in the middle of a cycle."""
        return bool(self.waiter.received & STOP_SIGNALS)

    def ready(self, text: str) -> None:
        """Reports to systemd that the start is complete; `text` is the first status line."""
        self._is_ready = True
        self.notifier.ready()
        self.notifier.status(text)
        self.log.info("daemon_ready", message=text)

    def beat(self, status: dict[str, Any], text: str) -> None:
        """Shows the daemon's status and feeds systemd's watchdog; acts at most once per `_beat_s`.

        Called after each cycle. `status` goes into the snapshot that `stoker status` reads and into the
        metrics, `text` to `systemctl status`.
        """
        self._last = (status, text)
        self.metrics.status = status
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._beat_s
            self.notifier.status(text)
            self.notifier.watchdog()
            self._write_snapshot("running")
            self.reserve.look()
            self._shown = self._last

    @property
    def show_due(self) -> float:
        """Returns when a beat can show news, monotonic seconds; inf where the last beat showed all."""
        return math.inf if self._last == self._shown else self._next_beat

    def set_aside(self, file: Path, error: RecordDamaged) -> None:
        """Moves a damaged record into quarantine and records an event."""
        place = set_aside(file, self.layout.quarantine, "damaged", str(error))
        self.events.record("record_damaged", level="error", path=str(file), moved_to=str(place))

    def end(self, state: str, exit_code: int) -> None:
        """Writes the last snapshot: `stopped` or `failed`."""
        self._write_snapshot(state, exit_code=exit_code)

    def write_runtime_files(self, port: int) -> None:
        """Writes the target file for Prometheus and the first snapshot for readers of the status."""
        target = {
            "targets": [f"{self.pipeline.metrics.address}:{port}"],
            "labels": {"pipeline": self.pipeline.name, "daemon": self.name},
        }
        self._write(self.runtime.targets(self.name), [target])
        self._write_snapshot("starting")

    def _write_snapshot(self, state: str, **more: Any) -> None:
        status, text = self._last
        snapshot = {
            **status,
            "v": 1,
            "daemon": self.name,
            "pipeline": self.pipeline.name,
            "pid": self._me.pid,
            "start_ticks": self._me.start_ticks,
            "state": state,
            "ready": self._is_ready,
            "text": text,
            "since": self._since,
            "time": utc_now(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            **more,
        }
        self._write(self.runtime.status(self.name), snapshot)

    def _write(self, file: Path, body: Any) -> None:
        """Writes a runtime file, creating a missing directory again; a failure never stops the daemon."""
        try:
            try:
                write_shown(file, body)
            except FileNotFoundError:
                # recreates the private directory with its private mode
                runtime_dir(self.pipeline.name, self.pipeline.state)
                self.runtime.create()
                write_shown(file, body)
        except OSError as error:
            if not self._is_status_failing:
                self._is_status_failing = True
                self.log.warning(
                    "status_unwritable", message=f"{self.runtime.root}: {error}; the work goes on unseen"
                )
        else:
            self._is_status_failing = False


def write_shown(file: Path, body: Any) -> None:
    """Replaces a file that other processes read; not synced. StorageError where it cannot be written."""
    write_atomic(file, json.dumps(body, default=str).encode() + b"\n", durable=False)
