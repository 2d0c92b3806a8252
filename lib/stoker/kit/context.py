"""The services a daemon's main function gets: configuration, log, events, metrics, loop and reserve."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.config.show import recorded
from stoker.kit.events import Events, Log
from stoker.kit.handover import Handover, become, signals_blocked
from stoker.kit.loop import Waiter
from stoker.kit.metrics import Metrics
from stoker.kit.process import ProcessId
from stoker.store.errors import StorageError, UnavailableError, storage_errors
from stoker.store.files import FILE_MODE, fsync_dir, opened, unlink_durably, write_atomic
from stoker.store.record import RecordDamaged, set_aside, utc_now
from stoker.store.requests import waiting_requests
from stoker.systemd.notify import Notifier

STOP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))
HEARD = STOP_SIGNALS | {signal.SIGHUP}
BEAT_S = 1.0  # the shortest time between two status writes, unless systemd's watchdog needs them more often
RESERVE_BYTES = 4 << 20  # a thousand records, or the events of a bad week
SPARE = 4  # created only where this many times its size are free: the reserve itself must not fill the disk
NEARLY_FULL_BYTES = 64 << 10  # a record still fits, the next might not
TARGET_MODE = 0o644  # Prometheus runs as a user of its own


class Reserve:
    """A file of real blocks on the state disk: given back when it is full, made again when space returns.

    Without it, a daemon on a full disk could record neither its workers' results nor that the disk is full.

    `held` while the file exists; `spent` while the disk is full: then only work already under way is
    recorded.
    """

    def __init__(self, path: Path, events: Events, size: int = RESERVE_BYTES) -> None:
        self._path, self._events, self._size = path, events, size
        self.held = self.spent = False
        self._hold()

    def give_back(self, reason: str) -> bool:
        """Frees the reserve because the state disk is full; returns False when no reserve was left."""
        given, self.held = self.held, False
        with contextlib.suppress(StorageError, FileNotFoundError):
            unlink_durably(self._path)
        if given and not self.spent:
            self.spent = True
            self._events.record("state_disk_full", reason=reason)
        return given

    def refresh(self) -> None:
        """Frees the reserve before the first write fails, and creates it again once there is room."""
        free, total = self._space()
        if self.spent:
            if free >= min(SPARE * self._size, total // 4):  # a quarter is enough for a very small disk
                self._hold()
                self.spent = False
                self._events.record("state_disk_has_room")
        elif not self.held:
            self._hold()
        elif free < NEARLY_FULL_BYTES:
            self.give_back(f"the disk of {self._path.parent} is full; free space on it")

    def _hold(self) -> None:
        """Creates the file, or completes a file that a crash cut short, if the disk has room to spare."""
        with (
            contextlib.suppress(StorageError, FileNotFoundError),
            storage_errors("reserve space at", self._path),
        ):
            is_whole = self._path.exists() and self._path.stat().st_blocks * 512 >= self._size
            if not is_whole and self._space()[0] >= SPARE * self._size:
                with opened(self._path, os.O_WRONLY | os.O_CREAT) as descriptor:
                    os.posix_fallocate(descriptor, 0, self._size)
                    os.fsync(descriptor)
                fsync_dir(self._path.parent)
                is_whole = True
            self.held = is_whole

    def _space(self) -> tuple[int, int]:
        """Returns the bytes that this user may write and those of the whole disk; zeros if statvfs fails."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return 0, 0
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return blocks * found.f_frsize, found.f_blocks * found.f_frsize


class DaemonContext:
    """A running daemon; its work calls beat(), and returns the exit code soon after `stopping`.

    `files_list` is the path given with --files-list, `until` the step given with --until. `handover` is what
    this process's image before left, `kept` the descriptors that the next one gets. `is_reload_asked` is set
    by SIGHUP.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        waiter: Waiter,
        *,
        once: bool,
        files_list: str | None = None,
        until: int | None = None,
        handover: Handover | None = None,
    ) -> None:
        self.name, self.pipeline, self.waiter = name, pipeline, waiter
        self.handover, self.kept, self.is_reload_asked = handover, dict[str, int](), False
        self.once, self.files_list, self.until = once, files_list, until
        self.layout, self.runtime = pipeline.layout, pipeline.runtime
        self.runtime.create()
        self.log = Log(name, pipeline.name, str(pipeline.file))
        self.metrics = Metrics(name, lambda: waiting_requests(self.layout, name))
        self.events = Events(self.layout, self.log, self.metrics.events)
        self.notifier = Notifier()
        self.reserve = Reserve(self.layout.ballast(name), self.events)
        self.version = version("stoker")  # of this code: an upgrade changes what is on disk
        self._since, self._started, self._reloads = utc_now(), time.monotonic(), 0
        if handover is not None:
            self._since, self._started = handover.daemon["since"], handover.daemon["started"]
            self._reloads = handover.daemon.get("reloads", 0) + 1
            self.metrics.go_on(handover.daemon["metrics"])
        self._me = ProcessId.of(os.getpid())
        self._is_ready = self._is_status_failing = False
        self._next_beat, self._beat_s = 0.0, BEAT_S
        self._last: tuple[dict[str, Any], str] = ({}, "starting")
        self._shown: tuple[dict[str, Any], str] | None = None
        if self.notifier.watchdog_interval_s is not None:  # half of it at most, says sd_watchdog_enabled(3)
            waiter.longest_s = self.notifier.watchdog_interval_s / 2
            self._beat_s = min(BEAT_S, waiter.longest_s / 2)

    def hand_over(
        self, work: Mapping[str, Any], descriptors: Mapping[str, int], why: Mapping[str, Any]
    ) -> None:
        """Begins again with the code and the file of now, in the same process; call it from the main thread.

        `work` and `descriptors` are what the daemon's work needs there, `why` the fields of the event. A stop
        that is asked meanwhile is heard there. Returns only by an OSError: the code cannot be started.
        """
        daemon = {
            "since": self._since,
            "started": self._started,
            "reloads": self._reloads,
            "metrics": self.metrics.counted(),
            "event": {"version_before": self.version, **why},
        }
        with signals_blocked(HEARD):
            become(Handover({**self.kept, **descriptors}, daemon, work))

    @property
    def stopping(self) -> bool:
        """Returns whether TERM or INT has come, also in the middle of a cycle."""
        return bool(self.waiter.received & STOP_SIGNALS)

    def ready(self, text: str) -> None:
        """Reports to systemd that the start is complete; `text` is the first status line."""
        self._is_ready = True
        self.metrics.answer()
        self.notifier.ready()
        self.notifier.status(text)
        self.log.info("daemon_ready", message=text)

    def beat(self, status: dict[str, Any], text: str) -> None:
        """Shows the daemon's status and feeds systemd's watchdog; acts at most once per `_beat_s`.

        Called after each cycle. `status` goes into the snapshot that `stoker status` reads and into the
        metrics, `text` to `systemctl status`.
        """
        self._last = (status, text)
        self.metrics.status, self.metrics.beat_at = status, time.time()
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._beat_s
            self.notifier.status(text)
            self.notifier.watchdog()
            self.write_snapshot("running")
            self.reserve.refresh()
            self._shown = self._last

    @property
    def show_due(self) -> float:
        """Returns when a beat can show news, monotonic seconds; inf where the last beat showed all."""
        return math.inf if self._last == self._shown else self._next_beat

    def set_aside(self, file: Path, error: RecordDamaged) -> None:
        """Moves a damaged record into quarantine and records an event."""
        place = set_aside(file, self.layout.quarantine, "damaged", str(error))
        self.events.record("record_damaged", path=str(file), moved_to=str(place))

    def write_runtime_files(self, metrics: str) -> None:
        """Writes the target file, by which Prometheus scrapes `metrics` (host:port), and the first status."""
        target = {
            "targets": [metrics],
            "labels": {"pipeline": self.pipeline.name, "daemon": self.name},
        }
        self._write(self._target, [target], TARGET_MODE)
        self.write_snapshot("starting")

    def write_configuration(self) -> None:
        """Writes what this daemon's configuration is, for `stoker reload --dry-run`."""
        body = {"v": 1, "pid": self._me.pid, "config": recorded(self.pipeline)}
        self._write(self.runtime.configuration(self.name), body)

    def remove_target(self) -> None:
        """Removes the target file: an orderly stop is no outage."""
        with contextlib.suppress(OSError):
            self._target.unlink()

    def write_snapshot(self, state: str, **more: Any) -> None:
        """Writes the status for its readers; the last one says `stopped` or `failed`."""
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
            "reloads": self._reloads,  # so that `stoker reload` knows the new image's first word
            "text": text,
            "since": self._since,
            "time": utc_now(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            **more,
        }
        self._write(self.runtime.status(self.name), snapshot)

    @property
    def _target(self) -> Path:
        return self.runtime.target(self.pipeline.name, self.name)

    def _write(self, file: Path, body: Any, mode: int = FILE_MODE) -> None:
        """Writes a runtime file, creating a missing directory again; a failure never stops the daemon."""
        data = json.dumps(body, default=str).encode() + b"\n"
        try:
            try:
                write_atomic(file, data, durable=False, mode=mode)
            except FileNotFoundError:
                self.pipeline.runtime.create()  # a private directory gets its private mode
                write_atomic(file, data, durable=False, mode=mode)
        except (OSError, UnavailableError) as error:
            if not self._is_status_failing:
                problem = f"{self.runtime.root}: {error}; the work continues without it"
                self.log.warning("status_unwritable", message=problem)
            self._is_status_failing = True
        else:
            self._is_status_failing = False
