"""`stoker run`: the three daemons in the foreground, without systemd.

They are started, restarted and stopped together. As process 1 of a container, too: what a daemon that ended
leaves behind becomes a child of this process, is reaped by it, and ends before it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.config import checked
from stoker.cli.pipeline.events import LABELS, Daemons, Output
from stoker.cli.pipeline.status import losses
from stoker.config.schema import Pipeline
from stoker.kit.exec import TRAINER_OUTPUT, child_environment, launch_command, set_child_subreaper
from stoker.kit.lock import Lock, take_up_state
from stoker.kit.loop import Backoff, Waiter
from stoker.kit.process import children_tree, processes_with_environment, reap_strays, signal_process
from stoker.kit.terminal import PHRASES, harmless
from stoker.observe.status import read_status
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR

PROMPT = "Once upon a time"
TURN_S = 0.5
NOTIFY, NOTIFY_EVERY_S = "notify", 60.0  # the command, and the time between its calls
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Before READY these exit codes mean that the next start would fail too: usage, data, a taken port, a wrong
# key.
HOPELESS = frozenset({64, 65, 69, 78})
HELD = 75
DATA_GRACE_S = 30.0  # after the run finishes, the longest wait for files under way
STOP_MARGIN_S = 30.0  # beyond the trainer's stop time; a daemon that takes longer hangs
ROUTINE = re.compile(r"\S+ level=(?!error)")  # the start of a line in a daemon's log that reports no error
TAIL_LINES, TAIL_BYTES = 8, 16 << 10
# of a daemon's log, and as much of its rotated part; both may be in memory
LOG_BYTES = 4 << 20


@dataclass
class Child:
    """A daemon: its process while it runs, and the time of its next start after a crash."""

    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    was_ready: bool = False
    start_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))
    command: tuple[str, ...] = ()  # words for Python; by default the daemon's module
    passes_output: bool = False  # the trainer's, to this process's own stdout and stderr

    def start(self, file: Path, *options: str) -> None:
        """Starts the daemon in its own session, so that only this process gets Ctrl-C from the terminal."""
        with self.log.open("ab") as log, contextlib.ExitStack() as until_started:
            passed = [os.dup(stream) for stream in (1, 2)] if self.passes_output else []
            for descriptor in passed:
                until_started.callback(os.close, descriptor)
            environ = {TRAINER_OUTPUT: ",".join(map(str, passed))} if passed else {}
            words = self.command or (f"stokerd.{self.name}",)
            self.process = subprocess.Popen(
                launch_command([sys.executable, "-P", "-m", *words, str(file), *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(environ),
                pass_fds=passed,
                start_new_session=True,
            )
        self.was_ready = False

    def poll(self, about: Mapping[str, Any]) -> int | None:
        """Reads the daemon's status; returns its exit code once it has ended (128 + signal), else None."""
        if self.process is None:
            return None
        body = about["body"]
        self.was_ready |= body.get("pid") == self.process.pid and bool(body.get("ready"))
        code = self.process.poll()
        if code is None:
            return None
        self.process = None
        return code if code >= 0 else 128 - code

    def signal(self, signum: int) -> None:
        if self.process is not None:
            self.process.send_signal(signum)

    def rotate(self) -> None:
        """Moves a full log aside by copying and truncating it: the daemon has it open for appending."""
        if self.log.stat().st_size >= LOG_BYTES:
            with contextlib.suppress(OSError):  # no room for the copy: the older part is lost
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)

    def last_words(self) -> list[str]:
        """Returns the last lines of the log that may explain the end."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return [line for line in lines if not ROUTINE.match(line)]


def how_it_ended(code: int) -> str:
    """Returns an exit code in words; 128 + n is the shell's code for signal n."""
    try:
        return f"was killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"


def is_nohup() -> bool:
    """Returns whether nohup started this: the end of the terminal is not to end it."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def is_current(about: Mapping[str, Any]) -> bool:
    """Returns whether a daemon's status is of the process that runs."""
    return bool(about["running"]) and about["body"].get("pid") == about["pid"]


class Foreground:
    """`stoker run` or `stoker train` from the start of its daemons to the end of the last daemon.

    `names` are the daemons, by default all that have work. With `once`, the daemons' options, a daemon that
    ends is not started again: its end is the end of all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        output: Output,
        *,
        names: Sequence[str] = (),
        until_done: bool = False,
        once: Sequence[str] = (),
        passes_output: bool = False,
    ) -> None:
        self.pipeline = pipeline
        self.until_done, self.once, self.passes_output = until_done, once, passes_output
        self.output = output
        self.say = output.say
        self.stopping: int | None = None  # the exit code to end with; None until a stop begins
        self.is_asked = False
        self.done_at: float | None = None
        self.kill_at = float("inf")
        logs = pipeline.runtime.root / "log"
        logs.mkdir(mode=0o750, parents=True, exist_ok=True)
        working = DAEMONS if pipeline.has_data else (TRAIN_SUPERVISOR,)
        self.children = [
            Child(name, logs / f"{name}.log", passes_output=passes_output) for name in names or working
        ]
        teller = Child(NOTIFY, logs / "notify.log", command=("stoker.cli.main", NOTIFY))
        is_told = not names and not once and (pipeline.notify.routes or pipeline.notify.heartbeat)
        self.tellers = [teller] if is_told else []  # of people

    def run(self) -> int:
        """Runs until stopped, done or failed; returns the exit code after every process below has ended."""
        set_child_subreaper()
        waiter = Waiter()
        waiter.signals(*(one for one in STOP_SIGNALS if one != signal.SIGHUP or not is_nohup()))
        for child in (*self.children, *self.tellers):
            child.log.write_bytes(b"")
        if not self.passes_output:
            self.say("info", f"logs are in {self.children[0].log.parent}")
        try:
            while True:
                status = self.status()
                self.tend(status)
                self.output.refresh(time.monotonic(), status)
                if self.stopping is not None and self.is_over():
                    return self.stopping
                for event in waiter.wait(TURN_S):
                    if event.kind == "signal":
                        self.asked_to_stop(event.about)
        except BaseException:
            self.stop(StokerError.exit_code)
            while not self.is_over():
                waiter.wait(TURN_S)
                for child in self.children:
                    child.poll({"body": {}})
                self.end_strays(time.monotonic())
            raise
        finally:
            waiter.close()

    def is_over(self) -> bool:
        """Returns whether every daemon has ended, and what a killed one left, which may be saving.

        When process 1 of a container ends, the kernel kills whatever is left in it.
        """
        if any(child.process for child in self.children):
            return False
        self.tell(float("inf"))  # of the end, too, once
        if any(teller.process for teller in self.tellers):
            return False
        return self.kill_at == float("inf") or not children_tree(os.getpid())

    def tell(self, now: float) -> None:
        """Calls `stoker notify` each minute, once more at the end, and says what it said."""
        for teller in self.tellers:
            if (code := teller.poll({"body": {}})) is not None:
                for line in teller.last_words() or [how_it_ended(code)] * (code != 0):
                    self.say("warning", harmless(line), NOTIFY)
                teller.log.write_bytes(b"")
            if teller.process is None and now > teller.start_at:
                teller.start_at = now + NOTIFY_EVERY_S
                teller.start(self.pipeline.file)

    def status(self) -> Daemons:
        """Returns the status of each daemon here."""
        everyone = read_status(self.pipeline.layout)
        return {child.name: everyone[child.name] for child in self.children}

    def tend(self, status: Daemons) -> None:
        """Starts daemons that are due, handles daemons that ended, stops all when the run is done."""
        now = time.monotonic()
        for child in self.children:
            if self.stopping is None and child.process is None and now >= child.start_at:
                child.start(self.pipeline.file, *self.once)
            child.rotate()
            code = child.poll(status[child.name])
            if code is not None and self.stopping is None:  # it ended by itself
                status = self.status()  # its last
                self.output.refresh(now, status)  # print the daemon's last events before its end
                self.ended(child, code, status[child.name]["body"].get("run_state"))
        self.tell(now)
        self.end_strays(now)
        if self.until_done and self.stopping is None and self.is_done(status, now):
            self.say("info", "the run is finished; stopping the daemons")
            self.stop(0)
        if self.until_done and self.stopping is None and self.is_halted(status):
            self.say("error", "the run is halted; stopping the daemons")
            self.stop(StokerError.exit_code)

    def end_strays(self, now: float) -> None:
        """Reaps what lost its parent; kills every process below once the time for a stop is over."""
        reap_strays({child.process.pid for child in (*self.children, *self.tellers) if child.process})
        if now >= self.kill_at:
            self.kill_at = float("inf")
            self.say("error", "a process does not stop; killing all that is left")
            for process in children_tree(os.getpid()):
                with contextlib.suppress(PermissionError):  # a set-uid helper
                    signal_process(process, signal.SIGKILL)

    def ended(self, child: Child, code: int, run_state: str | None) -> None:
        """Handles the end of a daemon: stops all where a restart would fail too, else schedules a restart."""
        failed = child.name == TRAIN_SUPERVISOR and (code in HOPELESS or run_state == "failed")
        hopeless = failed or code == 78 or (code in (*HOPELESS, HELD) and not child.was_ready)
        if self.once and code == 0:
            self.stop(0)
            return
        level, label = "error" if hopeless or code else "warning", LABELS[child.name]
        self.say(level, f"{child.name} {how_it_ended(code)}", label)
        for line in child.last_words():
            self.say(level, harmless(line), label)
        if hopeless or self.once:
            self.say("error", "stopping all")
            self.stop(code or 1)
            return
        if child.was_ready:
            child.backoff.reset()
        delay = child.backoff.next()
        child.start_at = time.monotonic() + delay
        self.say("warning", f"{child.name} is started again in {delay:.1f} s", label)

    def is_done(self, status: Daemons, now: float) -> bool:
        """Returns whether the run is finished, and files under way are complete or had DATA_GRACE_S."""
        supervisor, loop = status[TRAIN_SUPERVISOR], status.get(STAGE_SHARD)
        if not (is_current(supervisor) and supervisor["body"].get("at_rest")):
            return False
        self.done_at = self.done_at or now
        return loop is None or bool(loop["body"].get("complete")) or now - self.done_at >= DATA_GRACE_S

    def is_halted(self, status: Daemons) -> bool:
        """Returns whether the supervisor waits for an operator, with no trainer left."""
        supervisor = status[TRAIN_SUPERVISOR]
        return is_current(supervisor) and bool(supervisor["body"].get("halted"))

    def asked_to_stop(self, signum: int) -> None:
        """Handles a stop signal: the first waits for the trainer's checkpoint, the second kills the run."""
        if not self.is_asked:
            self.is_asked = True
            self.say("info", "stopping; the trainer is asked to save (once more to hurry)")
            interrupted = 128 + signum if self.until_done else 0  # not done: a calling script must stop too
            self.stop(interrupted if self.stopping is None else self.stopping)
            return
        self.say("warning", "hurrying: what was trained since the last checkpoint is lost")
        run = self.pipeline.layout.run(self.pipeline.train.run)
        for process in processes_with_environment("STOKER_RUN_DIR", str(run.root)):
            signal_process(process, signal.SIGKILL)

    def stop(self, code: int) -> None:
        """Sends TERM to every daemon; `code` becomes the exit code of `stoker run`."""
        self.stopping = code
        self.kill_at = time.monotonic() + self.pipeline.supervise.stop_time + STOP_MARGIN_S
        for child in self.children:
            child.signal(signal.SIGTERM)


@click.command(epilog="Example: stoker run demo-run/demo.yaml --until-done")
@pipeline_file
@click.option("--until-done", is_flag=True, help="End when the training run is finished (0) or failed.")
@click.option("--headless", is_flag=True, help="Print on a terminal what a file or a pipe would get.")
@click.option("--quiet", "-q", is_flag=True, help="Print warnings, errors and the summary at the end alone.")
@click.pass_context
def run(context: click.Context, pipeline: Pipeline, until_done: bool, headless: bool, quiet: bool) -> None:
    """Run the three daemons of FILE's pipeline as children, and show their work.

    A pipeline without a dataset needs the train supervisor alone.

    A terminal shows sentences and a live line per daemon; a file or a pipe gets key=value lines. Ctrl-C stops
    all cleanly and waits for the trainer's checkpoint; a second Ctrl-C does not wait. Exit code 75: this
    pipeline is running already. 78: its configuration is wrong.
    """
    warnings = checked(pipeline)
    take_up_state(pipeline)
    pipeline.runtime.create()
    output = Output(pipeline.layout, headless=headless, quiet=quiet)
    with Lock.acquire(pipeline.layout.run_lock, purpose="stoker run"):
        output.say("info", f"pipeline {pipeline.name}, state {pipeline.state}, run {pipeline.train.run}")
        for warning in warnings:
            output.say("warning", warning)
        code = Foreground(pipeline, output, until_done=until_done).run()
        output.close()
        output.say("info" if code == 0 else "error", f"ended with exit code {code}")
        output.write("".join(f"{line}\n" for line in summary_lines(pipeline)).encode())
    context.exit(code)


def summary_lines(pipeline: Pipeline) -> Iterator[str]:
    """Yields the train supervisor's last status as lines, and a command that generates text."""
    body = read_status(pipeline.layout)[TRAIN_SUPERVISOR]["body"]
    if halted := body.get("halted"):  # perhaps by an earlier supervisor: no event of this one says why
        yield f"halted      {halted['reason']}"
        yield f"remedy      {halted['remedy']}"
    if finished := body.get("finished"):
        yield f"finished    {PHRASES.get(finished, finished)}"
    checkpoint = body.get("checkpoint")
    if checkpoint is None:
        yield "no checkpoint yet"
        return
    place = pipeline.layout.run(pipeline.train.run).checkpoints / checkpoint["name"]
    of = f" of {body['steps']:,}" if body["steps"] is not None else ""
    yield f"step        {body['step']:,}{of}"
    if text := losses(body):
        yield f"loss        {text}"
    if body["tokens"]:
        yield f"tokens      {body['tokens']:,} trained on"
    yield f"checkpoint  step {checkpoint['step']:,}: {place}"
    if not pipeline.train.follows_plan:
        return
    # By its name if the shell finds this program by its name, else by its path.
    found = shutil.which("stoker")
    program = "stoker" if found and Path(found).samefile(sys.argv[0]) else sys.argv[0]
    yield f"try it      {shlex.join([program, 'checkpoint', 'generate', str(place), '--prompt', PROMPT])}"
