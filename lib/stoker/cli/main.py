"""The `stoker` command: finds the subcommand, and turns each of its possible ends into an exit code."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from stoker.cli.options import did_you_mean, printable
from stoker.store.errors import ConfigError, StokerError, UnavailableError

COMPLETE = "_STOKER_COMPLETE"
EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_IO = 64, 130, 143, 74

# words: (module of stoker.cli, help); a module is imported only when its command is called. The command of an
# extra is "module:command"; a copy of Stoker without the extra's folder has no such command.
COMMANDS = {
    "init": ("pipeline.init", "Write a pipeline file for this machine, by questions or options."),
    "run": ("pipeline.run", "Run a pipeline's three daemons in the foreground."),
    "watch": ("pipeline.watch", "Keep a command of your own running, without a file."),
    "status": ("pipeline.status", "Show whether all is well, what each daemon does, the data and the run."),
    "top": ("top.command", "Show all of it on the whole terminal, as it goes on."),
    "describe": ("pipeline.describe", "Show one source, step, launch, daemon, event or alert."),
    "events": ("pipeline.events", "Show what happened, oldest first."),
    "runs": ("runs.runs", "Show the run's launches and where its time went."),
    "schedule": ("pipeline.schedule", "Show phases, learning rate, batch and tokens of a run by step."),
    "evaluations": ("runs.evaluations", "Show what was measured of checkpoints, and what that promoted."),
    "report": ("report.command", "Write one HTML page about all of it."),
    "pause": ("runs.hold", "Stop training until it is resumed."),
    "resume": ("runs.hold", "Continue a run that is paused or halted."),
    "reload": ("pipeline.reload", "Reload the daemons with a changed file or new code."),
    "rollback": ("runs.rollback", "Take the run back to a checkpoint."),
    "train": ("pipeline.train", "Train a pipeline's run in the foreground, by hand."),
    "doctor": ("doctor.command", "Find what would stop this machine while nobody looks."),
    "rehearse": ("rehearse.command", "Run a pipeline in small beside the real one and kill its parts."),
    "audit": ("runs.audit", "Recount every document, token and step from the disk."),
    "verify": ("data.verify", "Prove shard sets, parquet, checkpoints, downloads or models."),
    "replay": ("stoker.replay.command:replay", "Train a recorded run again and compare it bit by bit."),
    "evaluate": ("stoker.evaluation.command:evaluate", "Score a checkpoint with a suite of tasks."),
    "bundle": ("stoker.release.bundle:bundle", "Write a proven model with its card, to publish or to serve."),
    "publish": ("stoker.release.publish:publish", "Put a bundle into a model's repository at a hub."),
    "fetch-model": ("stoker.release.fetch_model:fetch_model", "Bring a model from a hub, proven."),
    "serve": ("stoker.serve.command:serve", "Answer completions over HTTP with a bundle's model."),
    "data": ("main", "Fetch data, show its order, bring tokens in and out."),
    "data download": ("data.download", "Fetch a source's files, or list them."),
    "data rows": ("data.rows", "Write the first rows of a source to a file."),
    "data plan": (
        "stoker.provenance.plan:plan",
        "Show the order of the training data and the run's position.",
    ),
    "data batch": ("stoker.provenance.batch:batch", "Show which documents were in a step."),
    "data where": ("stoker.provenance.where:where", "Show which steps saw a row of a source file."),
    "data skip-set": ("runs.rollback", "Abandon a shard set that cannot be restored."),
    "data import": ("stoker.exchange.import_:import_", "Import tokens that another tool made."),
    "data export": ("stoker.exchange.export:export", "Write shard sets in other trainers' formats."),
    "checkpoint": ("main", "Show checkpoints, write their model, continue a text with it."),
    "checkpoint list": ("runs.checkpoint", "Show each checkpoint of the run."),
    "checkpoint generate": ("stoker.release.generate:generate", "Continue a text with a checkpoint's model."),
    "checkpoint export": (
        "stoker.release.export_model:export_model",
        "Write a checkpoint's model for Hugging Face transformers.",
    ),
    "quarantine": ("data.quarantine", "List, release or drop quarantined files."),
    "config": ("pipeline.config", "Check a pipeline file, or show the settings in force."),
    "memory": ("stoker.memory.group:memory", "Record, show and diagnose what memory is taken."),
    "units": ("pipeline.units", "Show or write what the systemd units take from a file."),
    "notify": ("notify.command", "Tell people what is due: events, the verdict, the morning line."),
    "client": ("runs.client", "Print the client for a trainer of your own."),
    "help": ("main", "Show the help of a command."),
    "version": ("main", "Show the version of Stoker."),
}
SECTIONS = {
    "Start": "init run watch",
    "Look": "status top describe events runs schedule evaluations report",
    "Steer": "pause resume reload rollback train",
    "Prove": "doctor rehearse audit verify replay evaluate",
    "Release": "bundle publish fetch-model serve",
    "Things": "data checkpoint quarantine config memory units notify client",
    "Help": "help version",
}
GOES = "the former name goes with the next version"
# Names of the version before, which work once more.
FORMER = {
    **{
        name: f"data {name}"
        for name in ("download", "rows", "plan", "batch", "where", "skip-set", "import", "export")
    },
    "generate": "checkpoint generate",
    "export-model": "checkpoint export",
}


def missing_extra(words: str) -> str | None:
    """Returns the package of a command whose extra is not installed."""
    place, _, attribute = COMMANDS[words][0].partition(":")
    package = ".".join(place.split(".")[:2])
    # Found by its folder: nothing of an extra is imported before its command is called.
    return package if attribute and importlib.util.find_spec(package) is None else None


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called; the help lines are in COMMANDS."""

    words = ""  # of the group itself

    def _words(self, name: str) -> str:
        return f"{self.words} {name}".lstrip()

    def list_commands(self, ctx: click.Context) -> list[str]:
        groups = [words.rpartition(" ") for words in COMMANDS if missing_extra(words) is None]
        return [name for group, _, name in groups if group == self.words]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        words = self._words(cmd_name)
        if words not in COMMANDS:
            return None
        if extra := missing_extra(words):
            raise UnavailableError(f"`stoker {words}` is an extra, and {extra} is not installed here")
        place, _, name = COMMANDS[words][0].partition(":")
        if not name:
            place, name = f"stoker.cli.{place}", cmd_name.replace("-", "_")
        module = importlib.import_module(place)
        command: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not self.words and args[0] in FORMER:
            now = FORMER[args[0]]
            click.echo(f"stoker: `stoker {args[0]}` is `stoker {now}` now; {GOES}", err=True)
            args = [*now.split(), *args[1:]]
        if args and self._words(args[0]) not in COMMANDS and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            known = did_you_mean(args[0], names, f"there are {', '.join(names)}.")
            ctx.fail(f"No such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        sections = {"Commands": " ".join(names)} if self.words else SECTIONS
        for title, section in sections.items():
            rows = [(name, COMMANDS[self._words(name)][1]) for name in section.split() if name in names]
            if rows:  # else all of them are of extras that are not here
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=12)


class DataGroup(LazyGroup):
    words = "data"


class CheckpointGroup(LazyGroup):
    words = "checkpoint"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="Example: stoker run demo-run/demo.yaml --until-done",
)
@click.version_option(package_name="stoker", message="stoker %(version)s")
def cli() -> None:
    """Keep a language-model pretraining run supplied with data and training.

    Most commands take a pipeline's YAML file. Exit codes: 0, 1 a finding, 64 usage, 65 bad data,
    69 unavailable, 70 a halted run or a bug, 74 storage, 75 try again, 78 wrong configuration.
    """


@cli.group(cls=DataGroup, epilog="Example: stoker data download /etc/stoker/fineweb.yaml --once")
def data() -> None:
    """Fetch a source's data, show the order it is trained in, bring tokens in and out."""


@cli.group(cls=CheckpointGroup, epilog="Example: stoker checkpoint list /etc/stoker/fineweb.yaml")
def checkpoint() -> None:
    """Show the checkpoints of a run; `stoker verify` proves them, `stoker rollback` goes back to one."""


@click.command("help", epilog="Example: stoker help quarantine release")
@click.argument("command", nargs=-1)
def help_(command: tuple[str, ...]) -> int:
    """Show what COMMAND does and its options; without COMMAND, list the commands."""
    return exit_code([*command, "--help"])


@click.command("version", epilog="Example: stoker version")
def version() -> int:
    """Show the version of Stoker."""
    return exit_code(["--version"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; only a bug ends in a traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # unwinds the stack, as Ctrl-C does
    if asked := os.environ.get(COMPLETE):  # by the shell's completion, deploy/completion
        sys.exit(shell_complete(cli, {}, "stoker", COMPLETE, asked))
    sys.exit(exit_code(sys.argv[1:] if arguments is None else arguments))


def exit_code(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code."""
    try:
        with cli.make_context("stoker", list(arguments)) as context:
            code = cli.invoke(context)
        if sys.stdout is not None:  # closed by whoever started this
            sys.stdout.flush()
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe; the interpreter's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (StokerError, OSError) as error:
        text = printable(str(error) if isinstance(error, StokerError) else _sentence(error))
        # The text of a ConfigError begins with its file and line.
        print(text if isinstance(error, ConfigError) else f"stoker: {text}", file=sys.stderr)
        return error.exit_code if isinstance(error, StokerError) else EXIT_IO
    return code if isinstance(code, int) else 0


def _sentence(error: OSError) -> str:
    """Returns a sentence with the failed path, the system's reason and a remedy."""
    what = error.strerror or str(error)
    text = f"{error.filename}: {what}" if error.filename is not None else what
    if isinstance(error, PermissionError):
        return f"{text}; run this as its owner or as a member of its group, or correct its mode"
    return f"{text}; check that path and its disk, then try again"


if __name__ == "__main__":  # `stoker run` starts `stoker notify` so
    main()
