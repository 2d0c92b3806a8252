"""Processes that halt themselves at a chosen place, so that a test can stop or kill them exactly there.

To watch for the place from outside and then send a signal is a race that a busy machine loses: the process is
far beyond it, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from support.sites import write_site
from support.waiting import wait_until

# Runs at the start of every Python that finds it on its path: the trainer halts after writing a step's row or
# telling a phase, the sealer before a step's files and after half of them, the build worker after telling a
# phase or so many messages, the tokenizer's after telling a percentage, an import before its output has its
# name, where a file beside this one asks for it; each file asks once.
_SITE = """
import itertools, os, signal, sys

def halt_after(owner, method, *words):
    whole, calls = getattr(owner, method), itertools.count(1)
    def halting(*arguments, **named):
        done = whole(*arguments, **named)
        call = next(calls)
        for word in words:
            try:
                os.unlink(os.path.join(os.path.dirname(__file__), f"halt-{word(call, *arguments, **named)}"))
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), signal.SIGSTOP)
        return done
    setattr(owner, method, halting)

if "stoker.training.trainer" in sys.orig_argv[1:4]:
    from stoker.supervise.run.metrics_log import MetricsLog
    from stoker.training.protocol import Protocol
    halt_after(MetricsLog, "append", lambda call, log, row: row["step"] if "loss" in row else None)
    halt_after(Protocol, "say", lambda call, protocol, *phase, **words: protocol.phase)
if "stoker.shards.build.tokenizer_worker" in sys.orig_argv[1:4]:
    from stoker.kit.workers.child import Report
    halt_after(Report, "__call__", lambda call, report, kind, **fields: fields.get("percent"))
if "stoker.checkpoints.sealer" in sys.orig_argv[1:4]:
    from stoker.checkpoints.seal import CheckpointWriter
    halt_after(CheckpointWriter, "__init__", lambda call, writer, directory, step, launch: f"begun-{step}")
    halt_after(
        CheckpointWriter,
        "add",
        lambda call, writer, name, chunks: f"half-{writer.step}" if name == "trainer.json" else None,
    )
if sys.orig_argv[2:4] == ["data", "import"]:
    from stoker.exchange import import_
    halt_after(import_, "convert", lambda call, *arguments: "converted")
if {"stoker.shards.build.build_worker", "support.line_worker"} & {*sys.orig_argv[1:4]}:
    from stoker.kit.workers.child import Report
    halt_after(
        Report,
        "__call__",
        lambda call, report, kind, **fields: fields.get("phase"),
        lambda call, report, kind, **fields: call,
    )
"""


def halts_at(directory: Path, words: Iterable[object]) -> dict[str, str]:
    """What to put into a process's environment so that it halts after each of these steps or phases, once."""
    directory.mkdir(exist_ok=True)
    for left in directory.glob("halt-*"):
        left.unlink()
    write_site(directory, _SITE)
    for word in words:
        (directory / f"halt-{word}").touch()
    return {"PYTHONPATH": str(directory)}


def wait_halted(pid: int) -> None:
    """Wait until the process stands still; it goes on with SIGCONT."""
    wait_until(lambda: is_halted(pid), what=f"process {pid} to halt")


def is_halted(pid: int) -> bool:
    """Whether a signal has stopped it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] == "T"
