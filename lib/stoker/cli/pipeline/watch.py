"""`stoker watch`: a command of the user's own under the train supervisor, without a file, daemon or root."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml

from stoker.cli.options import TEXT, one_line
from stoker.cli.persons_command import run_command
from stoker.cli.pipeline.events import Daemons, Output
from stoker.cli.pipeline.run import Child, Foreground, how_it_ended
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock, read_holder, take_up_state
from stoker.kit.terminal import Footer, harmless, sentence
from stoker.store.errors import ConfigError, StokerError, UsageError
from stoker.store.files import make_dir, write_atomic
from stoker.store.layout import TRAIN_SUPERVISOR, StateLayout
from stoker.store.record import RecordDamaged, read_record
from stoker.store.requests import file_request

STDERR = 2
NOTIFY_S = 60.0
SIGNALLED = 128  # above it an exit code is that of a signal
SHOWN = frozenset(
    {"trainer_launched", "checkpoint_proven", "external_available", "run_resumed", "run_finished"}
)
NOT_FOUND = 127  # as a shell ends for a program that is not there
_NO_NAME = re.compile(r"[^a-z0-9_]+")
_PLACE = re.compile(r"(?m)^\S.*?\.yaml(?::\d+)?: ")
_KEYS = {  # as a pipeline file names what is an option here
    "train.external.checkpoints": "--checkpoints",
    "train.external.resume": "--resume",
    "train.external.step": "--step",
    "train.init_from": "--init-from",
    "stoker reload FILE; stoker resume FILE": "the same command again",
}
_text = partial(click.option, type=TEXT)  # all of it is written into a file
_KEY = re.compile("|".join(map(re.escape, _KEYS)))


@click.command(
    # The command's own options begin after its first word, with or without `--`.
    context_settings={"allow_interspersed_args": False},
    epilog="Example: stoker watch --checkpoints 'out/checkpoint-*' --resume '--resume {path}' -- "
    "python train.py",
)
@click.argument("command", nargs=-1, type=TEXT)
@click.option("--list", "is_list", is_flag=True, help="List the watched commands there are, and end.")
@_text("--checkpoints", metavar="GLOB", help="The files or directories that are its checkpoints.")
@_text("--resume", metavar="ARGS", help="Added at a restart, with {path} or {step} filled in.")
@_text("--step", metavar="REGEX", help="What finds the step in a line of its output.  [default: auto]")
@_text("--init-from", metavar="PATH", help="A checkpoint that is there already, to begin from.")
@_text("--notify", metavar="ARGS", help="Run this once when it needs a hand; {message} is why.")
@_text("--name", metavar="NAME", help="Name of the run.  [default: from the command and directory]")
@_text("--state", metavar="DIR", help="Where its records are.  [default: ~/.local/state/stoker/NAME]")
@_text("--save", metavar="FILE", help="Write the pipeline file of all this, and end.")
@click.pass_context
def watch(context: click.Context, /, command: tuple[str, ...], *, is_list: bool, **given: str | None) -> None:
    """Keep COMMAND running: start it again after a crash or a hang, from its newest whole checkpoint.

    COMMAND runs here, in the foreground; what it prints is passed through. What the supervisor says is on
    standard error, after `stoker:`. Checkpoints are those that the glob matches, and those that the command
    reports by the client (`stoker client`): each is copied, proven whole and put back before a restart. Five
    launches in a row without a new one end it. The same command in the same directory continues it.

    Ctrl-C asks the command to save and end (SIGTERM); a second one does not wait. The exit code is that of
    the command, 130 after Ctrl-C.
    """
    if is_list:
        base = Path(given["state"]) if given["state"] else _states()
        click.echo("\n".join(map(one_line, listed(base))) or "no watched commands")
        return
    if not command:
        raise UsageError("name the command to watch, as in: stoker watch -- python train.py")
    notify = _words(given["notify"], "--notify")
    if (origin := given["init_from"]) is not None and not os.path.lexists(origin):
        raise UsageError(f"--init-from {origin}: it is not there; name a checkpoint")
    if given["save"] is not None:
        file = Path(given["save"]).absolute()
        if file.exists():
            raise UsageError(f"--save {file}: it exists; name another, or move it away")
        settings = checked(body(command, file.stem, given))
        write_atomic(file, _yaml(settings))
        click.echo(f"saved; continue with: stoker run {shlex.quote(str(file))}")
        return
    if shutil.which(command[0]) is None:
        click.echo(f"stoker: {command[0]}: there is no such program; name one in PATH, or its path", err=True)
        context.exit(NOT_FOUND)
    name = given["name"] or name_of(command, str(Path.cwd()))
    settings = checked(body(command, name, given))
    home = Path(settings["state"]).parent
    make_dir(home)
    with Lock.acquire(home / "watch.lock", purpose="stoker watch"):
        file = home / f"{name}.yaml"
        output = Beside(taken_up(file, settings))
        output.say("info", f"what is kept of this run is in {home}")
        code = Watching(load_pipeline(file), output, notify).run()
    context.exit(code)


def listed(base: Path) -> Iterator[str]:
    """Yields the name, state, directory and command of each watch below a directory, or in it."""
    for lock in sorted((*base.glob("watch.lock"), *base.glob("*/watch.lock"))):
        for file in sorted(lock.parent.glob("*.yaml")):
            pipeline = load_pipeline(file)
            external, run = pipeline.train.external_trainer, pipeline.train.run
            assert external is not None
            state = str(_record(pipeline.layout, run).get("state") or "not begun")
            held = "watched now" if read_holder(lock) is not None else "not watched now"
            yield f"{file.stem}: {run} {state}, {held}"
            yield f"    in {external.directory}: {shlex.join(pipeline.train.command or ())}"


def name_of(command: Sequence[str], directory: str) -> str:
    """Returns a pipeline's name for a command in a directory: the same for the same."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = _NO_NAME.sub("-", Path(script).stem.lower()).strip("-_")[:24]
    digest = hashlib.sha256(json.dumps([directory, *command]).encode()).hexdigest()[:8]
    return f"{stem or 'watch'}-{digest}"


def body(command: Sequence[str], name: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the pipeline file's content."""
    home = Path(given["state"]).absolute() if given["state"] else _states() / name
    external = {
        "directory": str(Path.cwd()),
        "checkpoints": given["checkpoints"],
        "step": given["step"],
        "resume": list(_words(given["resume"], "--resume")) or None,
    }
    train: dict[str, Any] = {"command": list(command)}
    if given["init_from"] is not None:
        train["init_from"] = str(Path(given["init_from"]).absolute())
    train["external"] = {key: value for key, value in external.items() if value is not None}
    # Any free port: several commands may be watched at once.
    return {"name": name, "state": str(home / "state"), "train": train, "metrics": {"ports": {"train": 0}}}


def checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns a pipeline file's content; raises ConfigError that names the options that are wrong."""
    with tempfile.TemporaryDirectory(prefix="stoker-watch-") as folder:
        file = Path(folder) / f"{Path(settings['name']).name}.yaml"
        write_atomic(file, _yaml(settings))
        try:
            load_pipeline(file)
        except ConfigError as problem:
            raise ConfigError(as_options(str(problem))) from problem
    return settings


def as_options(text: str) -> str:
    """Returns a message about a pipeline file in the words of this command."""
    return _KEY.sub(lambda key: _KEYS[key[0]], _PLACE.sub("", text))


def taken_up(file: Path, settings: dict[str, Any]) -> StateLayout:
    """Writes the pipeline file and takes up its state; a finished run is followed by another one.

    Raises ConfigError for what cannot be started.
    """
    layout, number = StateLayout(Path(settings["state"])), 1
    while (record := _record(layout, run := f"run-{number}")).get("state") == "finished":
        number += 1
    settings["train"]["run"] = run
    write_atomic(file, _yaml(settings))
    take_up_state(load_pipeline(file))
    if record.get("halted") or record.get("paused"):  # whoever starts it again has seen to it
        file_request(layout, TRAIN_SUPERVISOR, "resume", {})
    return layout


class Beside(Output):
    """What the supervisor says, beside the command's own output: sentences on standard error."""

    def __init__(self, layout: StateLayout) -> None:
        super().__init__(layout, headless=True, quiet=True)
        self.trouble = ""  # why a hand is needed
        self.exit_code = 0  # of the last launch
        self._is_told = True  # when the next launch comes

    def say(self, level: str, text: str, label: str = "") -> None:
        if level == "error" and not self.trouble:
            self.trouble = text
        footer = Footer(STDERR)
        data = footer.line(text, level, "stoker: ") if footer.shown else f"stoker: {text}\n".encode()
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(STDERR, data)

    def refresh(self, now: float, status: Daemons) -> None:
        """Shows restarts, checkpoints and whatever is wrong."""
        for event in self._events.new():
            word, level = str(event.get("event")), str(event.get("level", "info"))
            if word == "trainer_exited":
                self.exit_code, self._is_told = int(event.get("exit_code") or 0), False
            if level != "info" or word in SHOWN:
                self.say(level, as_options(sentence(event)))
        shown = status[TRAIN_SUPERVISOR]["body"]
        if not self._is_told and (seconds := shown.get("next_launch_s")) is not None:
            self._is_told = True
            count, most = shown["figures"]["fruitless"], shown["figures"]["config"]["launches"]
            why = f" ({count} of {most} in a row left no new checkpoint)" if count else ""
            self.say("info", f"starting again in {max(1, round(seconds))} s{why}")


class Watching(Foreground):
    """The supervisor as a child; the command's output passes it by. It shows nothing of itself."""

    output: Beside

    def __init__(self, pipeline: Pipeline, output: Beside, notify: Sequence[str]) -> None:
        super().__init__(pipeline, output, names=(TRAIN_SUPERVISOR,), once=("--once",), passes_output=True)
        self.notify = notify

    def run(self) -> int:
        """Returns the command's exit code, or that of a stop or a refusal, once nothing of it is left."""
        code = super().run()
        is_needed = self.notify and code and self.output.trouble and not self.is_asked
        if is_needed and (why := run_command(self.notify, self.output.trouble, NOTIFY_S)):
            click.echo(f"stoker: --notify: {why}", err=True)
        return code

    def ended(self, child: Child, code: int, run_state: str | None) -> None:
        """Handles the supervisor's end, which is that of all; one that was killed is started again."""
        if code > SIGNALLED:
            delay = child.backoff.next()
            child.start_at = time.monotonic() + delay
            self.say("warning", f"the supervisor {how_it_ended(code)}; starting it again in {delay:.0f} s")
            return
        if code == StokerError.exit_code and run_state == "halted":
            code = self.output.exit_code or code
        elif run_state == "paused":
            self.say("info", "the run is paused; the same command continues it")
        elif code and not self.output.trouble:
            for line in child.last_words() or [f"the supervisor ended with exit code {code}"]:
                self.say("error", harmless(line))
        self.stop(code)

    def asked_to_stop(self, signum: int) -> None:
        """Handles a stop signal as `stoker run` does; the exit code is then a shell's."""
        super().asked_to_stop(signum)
        self.stopping = self.stopping or 128 + signum


def _yaml(settings: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True).encode()


def _record(layout: StateLayout, run: str) -> dict[str, Any]:
    """Returns the run's record; empty where there is none, or one for the supervisor to set aside."""
    with contextlib.suppress(FileNotFoundError, RecordDamaged):
        return read_record(layout.run(run).record)
    return {}


def _states() -> Path:
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    except RuntimeError as problem:
        raise UsageError(f"{problem} for what is kept of a run; name a directory with --state") from problem
    return base.absolute() / "stoker"


def _words(text: str | None, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as problem:
        raise UsageError(f"{option} {text!r}: {problem}; write words as a shell reads them") from problem
