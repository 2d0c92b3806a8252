"""The main function of every daemon: its lock, configuration, context and exit code.

A daemon is `daemon_main(name, work, argv)`; `work` gets the context and returns the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count

from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.context import HEARD, STOP_SIGNALS, DaemonContext
from stoker.kit.crash_loop import SILENT, UncleanEnds, unclean_ends
from stoker.kit.handover import Handover, take_over
from stoker.kit.lock import Lock, read_holder, take_up_state
from stoker.kit.loop import Waiter
from stoker.kit.metrics import PORT_KEYS
from stoker.store.errors import (
    ConfigError,
    LockHeld,
    StokerError,
    StorageError,
    UnavailableError,
    storage_errors,
)
from stoker.store.files import sweep_temporaries
from stoker.store.log import LogScan
from stoker.systemd.drop_ins import unit_differs

__all__ = ["DaemonContext", "daemon_main"]

FAILED_S = 30.0
PORT_REFUSALS, PORT_WAIT_S = 3, 10.0
COMMAND_PURPOSE = "command"  # the lock's purpose while a command does a stopped daemon's work for a moment
COMMAND_PATIENCE_S = 30.0
WANTED_FILES = 8192  # enough for a thousand workers (three pipes and a pidfd each); a higher limit is kept
LEAST_FILES = (
    256  # enough for a daemon with workers on a few CPUs; with fewer, the first busy hour ends in EMFILE
)

Work = Callable[[DaemonContext], int]


def daemon_main(
    name: str,
    work: Work,
    argv: Sequence[str],
    *,
    about: str = "",
    takes_files_list: bool = False,
    takes_until: bool = False,
) -> int:
    """Runs a daemon from its command line to its exit code; prints a refusal as a sentence on standard error.

    `about` is the help's first paragraph.
    """
    gc.enable()
    program = "stoker-" + name.replace("_", "-")
    options = _parse(program, about, argv, takes_files_list=takes_files_list, takes_until=takes_until)
    if isinstance(options, int):
        return options
    faulthandler.enable()
    handover = take_over()
    waiter = Waiter()
    waiter.signals(*HEARD)  # from here on a stop signal leads to an orderly stop
    if handover is not None:
        waiter.hear_also(handover.descriptors["signals"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    try:
        _allow_open_files()
        pipeline = load_pipeline(options.file)
        _give_back_memory()
        take_up_state(pipeline)
        with _lock(pipeline, name, waiter, handover) as lock:
            given = {name: getattr(options, name) for name in ("once", "files_list", "until")}
            context = DaemonContext(name, pipeline, waiter, **given, handover=handover)
            code = _run(context, work, lock)
    except StokerError as error:
        print(f"{program}: {error}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        print(f"{program}: {error}; check that path and its disk, then start again", file=sys.stderr)
        code = os.EX_IOERR
    finally:
        waiter.close()
    if code not in (0, os.EX_CONFIG) and not waiter.received & STOP_SIGNALS and "NOTIFY_SOCKET" in os.environ:
        # The unit restarts a killed daemon after a second; a daemon that fails at each start must not spin.
        time.sleep(FAILED_S)  # TERM ends the sleep: closing the waiter restored the default signal handlers
    return code


def _parse(
    program: str, about: str, argv: Sequence[str], *, takes_files_list: bool, takes_until: bool
) -> argparse.Namespace | int:
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog=f"Example: {program} /etc/stoker/fineweb.yaml. Exit codes: 0, 1 files given up (--once), 64 "
        "usage, 65 bad data, 69 unavailable, 70 a halted run or a bug, 74 storage, 75 try again (another one "
        "runs, or --once was stopped before its end), 78 wrong configuration.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('stoker')}")
    parser.add_argument("file", metavar="FILE", help="the pipeline's YAML file")
    parser.add_argument("--once", action="store_true", help="do what there is to do, then exit 0")
    parser.set_defaults(files_list=None, until=None)
    if takes_files_list:
        only = "work only on the files that LIST names, one path relative to the source a line"
        parser.add_argument("--files-list", metavar="LIST", help=only)
    if takes_until:
        parser.add_argument("--until", metavar="STEP", type=int, help="end when the run has made this step")
    try:
        return parser.parse_args(argv)
    except SystemExit as error:  # argparse has printed the error or the help
        return os.EX_USAGE if error.code else 0


def _allow_open_files() -> None:
    """Raises the soft limit on open files, which children inherit, to WANTED_FILES or as far as granted.

    Shells and services pass on soft limits from the days of select(2). Raises UnavailableError where fewer
    than LEAST_FILES files may be open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < LEAST_FILES:
        raise UnavailableError(
            f"only {hard} files may be open at once, {LEAST_FILES} are needed; raise the hard limit "
            "(ulimit -Hn, LimitNOFILE= of the unit)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, WANTED_FILES)), hard))


def _give_back_memory() -> None:
    """Returns to the kernel what imports and the file's schema took for a moment: nearly a megabyte."""
    with contextlib.suppress(AttributeError):  # another libc than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _lock(pipeline: Pipeline, name: str, waiter: Waiter, handover: Handover | None) -> Lock:
    """Returns the daemon's lock; waits for a command that holds it, because commands hold it briefly."""
    path = pipeline.layout.lock(name)
    if handover is not None:
        return Lock.adopted(path, handover.descriptors["lock"])
    give_up = time.monotonic() + COMMAND_PATIENCE_S
    while True:
        try:
            return Lock.acquire(path, purpose=name)
        except LockHeld:
            holder = read_holder(path)
            passing = holder is None or holder.purpose == COMMAND_PURPOSE
            if not passing or waiter.received & STOP_SIGNALS or time.monotonic() >= give_up:
                raise
        waiter.wait(0.2)


def _run(context: DaemonContext, work: Work, lock: Lock) -> int:
    context.waiter.on_signal = lambda signum: _tell_signal(context, signum)
    metrics, before = context.metrics, context.handover
    place = _serve(context)
    context.kept = {"lock": lock.fileno(), "metrics": metrics.listening, "signals": context.waiter.wake_up}
    try:
        if before is None:
            lock.update({"runtime": str(context.runtime.root), "metrics": place})
            context.write_runtime_files(place)
            ends = _unclean_ends(context)
            metrics.unclean_at = None if ends is None or ends.latest is None else ends.latest.timestamp()
            is_silent = ends is not None and ends.ends and ends.last == SILENT
            after = {"after": f"an end {SILENT}"} if is_silent else {}
            context.events.record("daemon_started", pid=os.getpid(), once=context.once, **after)
            if ends is not None and ends.is_loop:
                context.events.record("daemon_crash_loop", message=str(ends), ends=ends.ends)
        else:
            context.events.record("reloaded", version=context.version, **before.daemon["event"])
        context.write_configuration()
        _look_at_unit(context)
        code = _work(work, context)
    finally:
        metrics.close()
        context.events.close()
    return code


def _serve(context: DaemonContext) -> str:
    """Takes the metrics port; raises ConfigError where it stays taken, as by another pipeline's daemon.

    systemd would start this daemon again without end, and its unit would be "activating" for ever.
    """
    asked, before = context.pipeline.metrics, context.handover
    listening = None if before is None else before.descriptors["metrics"]
    port = getattr(asked.ports, PORT_KEYS[context.name])
    for refusals in count(1):
        try:
            return context.metrics.serve(asked.address, port, listening=listening)
        except UnavailableError as error:
            if not os.environ.get("NOTIFY_SOCKET") or context.stopping:
                raise
            if refusals == PORT_REFUSALS:
                raise ConfigError(str(error)) from error
        context.notifier.extend_timeout(2 * PORT_WAIT_S)
        context.waiter.wait(PORT_WAIT_S)
    raise AssertionError


def _look_at_unit(context: DaemonContext) -> None:
    """Says where the unit's drop-in is not what the file asks for, as after a change of the file."""
    if (found := unit_differs(context.name, context.pipeline)) is not None:
        path, lines = found
        file = context.pipeline.file
        remedy = f"run `stoker units {file} --write`, then systemctl daemon-reload, and restart this unit"
        message = f"the unit's drop-in is not what {file} asks for; {remedy}"
        context.events.record("unit_differs", path=str(path), lines=lines, message=message)


def _work(work: Work, context: DaemonContext) -> int:
    """Runs a daemon's work; turns an error that it did not handle into an event and an exit code."""
    try:
        _sweep(context)
        code = work(context)
    except StokerError as error:
        code = error.exit_code
        context.events.record("daemon_failed", message=str(error), exit_code=code)
    except Exception as error:  # noqa: BLE001 - a bug: its stack into the log, and systemd starts us again
        code = os.EX_SOFTWARE
        context.log.write("error", "daemon_traceback", "".join(traceback.format_exception(error)), {})
        said = f"{type(error).__name__}: {error}; this is a bug, the log holds its traceback"
        context.events.record("daemon_failed", message=said, exit_code=code)
    else:
        context.events.record("daemon_stopped", exit_code=code)
    context.notifier.stopping()
    if code == 0 or context.stopping:
        context.remove_target()
    context.write_snapshot("stopped" if code == 0 else "failed", exit_code=code)
    return code


def _unclean_ends(context: DaemonContext) -> UncleanEnds | None:
    try:
        events = LogScan(context.layout.events(context.name), rotated=True)
        return unclean_ends((event for event, _ in events), datetime.now(UTC))
    except StorageError:  # the first event tells it
        return None


def _sweep(context: DaemonContext) -> None:
    """Removes temporary files that ended processes left of records, those of all daemons."""
    with storage_errors("read", context.layout.runs):
        directories = context.layout.with_records()
    if swept := sum(sweep_temporaries(directory) for directory in directories):
        context.log.info("leftovers_swept", message=f"{swept} half-written records of ended processes")


def _tell_signal(context: DaemonContext, signum: int) -> None:
    if signum in STOP_SIGNALS:
        context.notifier.stopping()
        context.log.info("stop_asked", signal=signal.Signals(signum).name)
    else:
        context.is_reload_asked = True
        context.log.info("reload_asked", message="the file and the code are checked first")
