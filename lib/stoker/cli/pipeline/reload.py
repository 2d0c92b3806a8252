"""`stoker reload`: has the daemons that run take up a changed file or new code, and returns their verdict."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import click

from stoker.cli.ask_daemon import POLL_S
from stoker.cli.options import FiniteRange, one_line, pipeline_file
from stoker.config.changes import KEPT, WHEN, When, changed_keys, is_of
from stoker.config.checks import Fault
from stoker.config.document import dotted
from stoker.config.load import load_pipeline, refuse
from stoker.config.schema import Pipeline
from stoker.config.show import recorded
from stoker.kit.events import EventTail
from stoker.kit.handover import VARIABLE
from stoker.kit.lock import read_holder, require_own_state
from stoker.kit.process import ProcessId, environment_of, signal_process
from stoker.observe.status import read_configuration, read_status
from stoker.store.errors import ConfigError, Transient, UnavailableError
from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR

ORDER = (TRAIN_SUPERVISOR, STAGE_SHARD, DOWNLOAD_WATCHDOG)  # first the one that refuses what the others would
NAMES = {daemon.replace("_", "-"): daemon for daemon in DAEMONS}
WAIT_S = 80.0  # less than the 90 s that systemd allows for a reload
ANSWERS = ("reloaded", "reload_refused")


@click.command(epilog="Example: stoker reload /etc/stoker/fineweb.yaml")
@pipeline_file
@click.option("--daemon", "named", type=click.Choice([*NAMES]), help="Only this one.")
@click.option("--wait", "wait_s", type=FiniteRange(min=1), default=WAIT_S, help="Longest wait, in seconds.")
@click.option("--dry-run", is_flag=True, help="Show the changed keys and when each counts; reload nothing.")
def reload(pipeline: Pipeline, named: str | None, wait_s: float, *, dry_run: bool) -> int:
    """Reload the daemons of FILE's pipeline with the file and the code as they are now.

    Each running daemon checks both in a child first, and restarts in place without ending its trainer; the
    command waits until it is ready. Exit code 78: the file or the code is refused, with the line and the key;
    the daemon continues unchanged, and the daemons after it are not asked. 69: none runs. 75: one has not
    answered in time.

    With --dry-run a key counts now (from the reload on), at the next launch of the trainer, only after a stop
    and start, or is refused; exit code 78 for one of the last two, by which a reload is refused.
    """
    require_own_state(pipeline)
    asked = ORDER if named is None else (NAMES[named],)
    until = time.monotonic() + wait_s
    running = {daemon: process for daemon in asked if (process := running_daemon(pipeline, daemon))}
    if not running:
        _refuse_another_state(pipeline)
        what = "no daemon" if named is None else f"the {named}"
        raise UnavailableError(
            f"{what} of pipeline {pipeline.name} runs with the state {pipeline.state}; what starts next "
            "reads the file as it is"
        )
    if dry_run:
        return _show_changes(pipeline, running)
    for daemon, process in running.items():
        event = _reload(pipeline, daemon, process, until)
        keys = ", ".join(event.get("changed", ()))
        changed = f"changed: {keys}" if keys else "no key changed"
        click.echo(f"{daemon.replace('_', '-')}: reloaded, version {event.get('version')}, {changed}")
    return 0


def running_daemon(pipeline: Pipeline, daemon: str) -> ProcessId | None:
    """Returns the process that holds a daemon's lock; None where none does, or a command for a moment."""
    holder = read_holder(pipeline.layout.lock(daemon))
    if holder is None or holder.purpose != daemon or holder.pid is None:
        return None
    return ProcessId(holder.pid, int(holder.extra.get("start", 0)))


def _refuse_another_state(pipeline: Pipeline) -> None:
    """Raises ConfigError where systemd says that the unit runs: then it is with another state or name."""
    if pid := os.environ.get("MAINPID"):
        text = f"the daemon that runs (pid {pid}) has another; put the old value back, or restart the unit"
        refuse(pipeline, [Fault(("state",), text)])


def _reload(pipeline: Pipeline, daemon: str, process: ProcessId, until: float) -> Mapping[str, Any]:
    """Signals a daemon and waits for its new image; returns its `reloaded` event. Raises ConfigError."""
    name, events = f"the {daemon.replace('_', '-')} (pid {process.pid})", EventTail(pipeline.layout)
    events.new()  # those of earlier reloads
    before = _snapshot(pipeline, daemon).get("reloads", 0)
    try:
        is_there = signal_process(process, signal.SIGHUP)
    except PermissionError as error:
        raise UnavailableError(f"{name} is another user's; become that user") from error
    answer: Mapping[str, Any] | None = None
    while is_there and time.monotonic() < until:
        for event in events.new():
            if event["daemon"] == daemon and event.get("event") in ANSWERS:
                answer = event
        if answer is not None and answer["event"] == "reload_refused":
            raise ConfigError(f"{name} continues unchanged: {answer['reason']}")
        body = _snapshot(pipeline, daemon)
        if answer is not None and body.get("ready") and body.get("reloads", 0) > before:
            return answer
        time.sleep(POLL_S)
        is_there = process.alive()
    if not is_there:
        raise UnavailableError(f"{name} has ended; its log says why")
    raise Transient(f"{name} has not answered yet; `stoker events` shows when it does")


def _snapshot(pipeline: Pipeline, daemon: str) -> Mapping[str, Any]:
    body: Mapping[str, Any] = read_status(pipeline.layout)[daemon]["body"]
    return body


def _show_changes(pipeline: Pipeline, running: Mapping[str, ProcessId]) -> int:
    """Prints the changed keys and when each counts; returns the exit code that a reload would have."""
    from stoker.cli.pipeline.config import findings

    asked = load_pipeline(pipeline.file, _environment(next(iter(running.values()))))
    now, changed = recorded(asked), dict[str, When]()
    for daemon in running:
        if (before := read_configuration(pipeline.layout, daemon)) is None:
            why = "does not tell its configuration; reload it once, or become its user"
            raise UnavailableError(f"the {daemon.replace('_', '-')} {why}")
        for key, when in changed_keys(daemon, before, now).items():
            changed[key] = max(when, changed.get(key, when), key=WHEN.index)
    refused, counts = findings(asked)[0] if changed else [], dict[str, str]()
    for key, when in changed.items():  # what a daemon's start refuses is worse than a value that stays
        reasons = [one_line(fault.text) for fault in refused if is_of(key, (dotted(fault.path),))]
        own = f"{when}: {KEPT}" if when == "stop and start" else when
        counts[key] = f"refused: {reasons[0]}" if reasons else own
    click.echo("\n".join(f"{key}: {when}" for key, when in counts.items()) or "no key changed")
    return ConfigError.exit_code if any(when.startswith(WHEN[2:]) for when in counts.values()) else 0


def _environment(process: ProcessId) -> Mapping[str, str]:
    """Returns the variables by which a daemon reads the file; this process's where it is another user's."""
    try:
        return {name: value for name, value in environment_of(process).items() if name != VARIABLE}
    except OSError:
        return os.environ
