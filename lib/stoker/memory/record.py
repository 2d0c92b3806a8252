"""`stoker memory record`: a CSV of what memory a command or a process takes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import click

from stoker.cli.options import PATH, plural
from stoker.config.units import format_bytes, format_duration
from stoker.store.errors import UnavailableError, UsageError

LEAST_S, MOST_S = 0.01, 86400.0


def _refuse_python(_context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        raise UsageError(
            "--python has gone; --memray records what each line of code allocates, Arrow's buffers included, "
            "where memray is installed"
        )


@click.command(
    epilog="Example: stoker memory record -o leak.csv -- python train.py",
    context_settings={"allow_interspersed_args": False},  # what follows COMMAND is COMMAND's
)
@click.option("--pid", metavar="PID", type=click.IntRange(1), help="Watch this process and its children.")
@click.option("--every", "every_s", metavar="S", type=click.FloatRange(LEAST_S, MOST_S), default=1.0,
              help="Seconds between two samples.")  # fmt: skip
@click.option("-o", "--output", metavar="CSV", type=PATH, help="A new file. [default: memory-<time>.csv]")
@click.option("--memray", is_flag=True, help="Run the Python program COMMAND under memray: CSV.memray.")
@click.option("--python", is_flag=True, hidden=True, expose_value=False, callback=_refuse_python)
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def record(
    pid: int | None, every_s: float, output: Path | None, memray: bool, command: tuple[str, ...]
) -> int:
    """Record what memory a command takes.

    All processes of COMMAND count, or process PID and its children. Each row of the CSV is a sample, a mark,
    a signal or, last, the end. The command writes a mark as a line to the descriptor that STOKER_MARK_FD
    names: echo epoch 2 >&$STOKER_MARK_FD. A signal to the recorder goes to all processes of COMMAND and is
    waited for; after a second one, what still runs is killed after ten seconds. Without the recorder COMMAND
    ends too (TERM). The exit code is COMMAND's, 128 + n for signal n.

    --memray needs memray in COMMAND's Python. A CSV that cannot be written later on never ends COMMAND. Exit
    codes of its own: 64 usage; 69 no such process, or no memray; 74 the CSV cannot be written.
    """
    from stoker.memory.recorder import CommandRecorder, Recorder, find_process, say
    from stoker.memory.recording import RecordingFile

    if (pid is None) == (not command):
        raise UsageError("name either a process (--pid PID) or a command (-- COMMAND...)")
    if memray and pid is not None:
        raise UsageError(f"--memray is for a command; `python -m memray attach {pid}` looks into a process")
    process = None if pid is None else find_process(pid)
    path = output or Path(time.strftime("memory-%Y%m%dT%H%M%SZ.csv", time.gmtime()))
    inside = path.with_name(f"{path.name}.memray")
    words = under_memray(command, inside) if memray else list(command)
    file = RecordingFile(path, say)
    recorder = Recorder(file, every_s, process) if process else CommandRecorder(file, every_s, words)
    code = recorder.run()
    # A command of a moment is over before a sample.
    peak = format_bytes(recorder.peak_rss_bytes) if recorder.peak_rss_bytes else "not seen"
    lasted = format_duration(recorder.elapsed_s)
    lost = f"; {plural(file.lost, 'row')} lost" if file.lost else ""
    say(f"{path}: peak {peak}, {plural(recorder.samples, 'sample')} in {lasted}{lost}")
    if memray:
        say(f"`{command[0]} -m memray flamegraph {inside}` shows which lines held memory at the peak")
    return code


def under_memray(command: tuple[str, ...], file: Path) -> list[str]:
    """Returns the command that runs a Python program under memray; raises UnavailableError without it."""
    # The first word that is no option of Python's own.
    programs = (at for at, word in enumerate(command) if at and (word in ("-m", "-c") or word[:1] != "-"))
    program = next(programs, len(command))
    python = list(command[:program])
    try:
        asked = subprocess.run([*python, "-c", "import memray"], capture_output=True, check=False)
        has_memray = asked.returncode == 0
    except OSError:
        has_memray = False
    if not has_memray:
        remedy = f"install it there (`{command[0]} -m pip install memray`), or record without --memray"
        raise UnavailableError(f"{command[0]} is no Python with memray: {remedy}")
    return [*python, "-m", "memray", "run", "--quiet", "-o", str(file), *command[program:]]
