"""`stoker memory record`: a CSV of what memory a command or a process takes."""

from __future__ import annotations

import time
from pathlib import Path

import click

from stoker.cli.options import PATH, plural
from stoker.config.units import format_bytes, format_duration
from stoker.store.errors import UsageError

LEAST_S, MOST_S = 0.01, 86400.0


@click.command(
    epilog="Example: stoker memory record -o leak.csv --python -- python train.py",
    context_settings={"allow_interspersed_args": False},  # what follows COMMAND is COMMAND's
)
@click.option("--pid", metavar="PID", type=click.IntRange(1), help="Watch this process and its children.")
@click.option("--every", "every_s", metavar="S", type=click.FloatRange(LEAST_S, MOST_S), default=1.0,
              help="Seconds between two samples.")  # fmt: skip
@click.option("-o", "--output", metavar="CSV", type=PATH, help="A new file. [default: memory-<time>.csv]")
@click.option("--python", is_flag=True, help="Ask Python programs what Arrow and Python objects hold.")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def record(
    pid: int | None, every_s: float, output: Path | None, python: bool, command: tuple[str, ...]
) -> int:
    """Record what memory a command takes.

    All processes of COMMAND count, or process PID and its children. Each row of the CSV is a sample, a mark,
    a signal or, last, the end. The command writes a mark as a line to the descriptor that STOKER_MARK_FD
    names: echo epoch 2 >&$STOKER_MARK_FD. A signal to the recorder goes to all processes of COMMAND and is
    waited for; after a second one, what still runs is killed after ten seconds. Without the recorder COMMAND
    ends too (TERM). The exit code is COMMAND's, 128 + n for signal n.

    --python runs a reporting thread and tracemalloc in Python programs, which makes them slower.
    A CSV that cannot be written later on never ends COMMAND. Exit codes of its own: 64 usage; 69 no such
    process; 74 the CSV cannot be written.
    """
    from stoker.memory.recorder import CommandRecorder, ProcessRecorder, Recorder, find_process, say
    from stoker.memory.recording import RecordingFile

    if (pid is None) == (not command):
        raise UsageError("name either a process (--pid PID) or a command (-- COMMAND...)")
    if python and pid is not None:
        raise UsageError("--python is for a command: it must be there when a program starts")
    process = None if pid is None else find_process(pid)
    path = output or Path(time.strftime("memory-%Y%m%dT%H%M%SZ.csv", time.gmtime()))
    file = RecordingFile(path, say)
    recorder: Recorder
    if process is None:
        recorder = CommandRecorder(file, every_s, command, python=python)
    else:
        recorder = ProcessRecorder(file, every_s, *process)
    code = recorder.run()
    # A command of a moment is over before a look at it.
    peak = format_bytes(recorder.peak_rss_bytes) if recorder.peak_rss_bytes else "not seen"
    lasted = format_duration(recorder.elapsed_s)
    lost = f"; {plural(file.lost, 'row')} lost" if file.lost else ""
    say(f"{path}: peak {peak}, {plural(recorder.samples, 'sample')} in {lasted}{lost}")
    return code
