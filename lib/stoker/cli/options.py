"""Options and output shared by several commands."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from stoker.kit.terminal import harmless
from stoker.store.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
# No check here that the path exists or is readable: the reader's own error also names a remedy.
PATH = click.Path(path_type=Path, readable=False)


def _load(_context: click.Context, _parameter: click.Parameter, file: Path) -> object:
    from stoker.config.load import load_pipeline  # not for help and version, which need no pipeline

    return load_pipeline(file)


def _load_planned(context: click.Context, parameter: click.Parameter, file: Path) -> object:
    pipeline: Any = _load(context, parameter, file)
    if not pipeline.train.follows_plan:
        why = "its run is made by an external trainer (train.command), which does not read Stoker's plan"
        raise UsageError(f"{file}: {why}: `{context.command_path}` has nothing to show")
    return pipeline


def _load_data(context: click.Context, parameter: click.Parameter, file: Path) -> object:
    pipeline: Any = _load(context, parameter, file)
    if not pipeline.has_data:
        raise UsageError(f"{file}: it prepares no dataset, so `{context.command_path}` has nothing to do")
    return pipeline


# The positional argument of most commands; the loader reports a missing file (78).
pipeline_file = click.argument("pipeline", metavar="FILE", type=PATH, callback=_load)
# The same for commands about the plan or the data, which a trainer of the user's own may lack.
planned_file = click.argument("pipeline", metavar="FILE", type=PATH, callback=_load_planned)
data_file = click.argument("pipeline", metavar="FILE", type=PATH, callback=_load_data)


class _NewFile(click.Path):
    """A file to write: it does not exist yet, and its directory does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(value)
        if os.path.lexists(file) or not file.absolute().parent.is_dir():
            why = "it exists" if os.path.lexists(file) else "there is no such directory"
            self.fail(f"{file}: {why}; name another file", param, ctx)
        return file


NEW_FILE = _NewFile()


class _Text(click.types.StringParamType):
    """Text for a record, a model or a column's name; a path, which may have any bytes, is a PATH."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is no UTF-8 text; write it in UTF-8.", param, ctx)
        return text


TEXT = _Text()


class FiniteRange(click.FloatRange):
    """A range of numbers; nan, which compares with none, and inf are outside of every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


def promoted_option(function: F) -> F:
    """Adds `--promoted`: not the newest checkpoint of a run, but the one that evaluation promoted."""
    what = "Of FILE's run or a run's directory, the checkpoint that evaluation promoted."
    return click.option("--promoted", is_flag=True, help=what)(function)


def json_option(function: F) -> F:
    """Adds `--json`: the same facts for a program."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a report.")(function)


def print_json(value: Any) -> None:
    """Prints a JSON value, indented; bytes of a file name that are not text are escaped."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    click.echo(text.encode(errors="backslashreplace").decode())


def answer(report: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Prints a report as JSON, or its lines as text."""
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(map(one_line, lines)))


def printable(text: str) -> str:
    """Returns the text with control characters escaped (\\x1b and the like), except newline and tab."""
    return "".join(sign if sign in "\n\t" else harmless(sign) for sign in text)


def one_line(value: object) -> str:
    """Returns the value on one line that is safe for a terminal: file names may hold line breaks."""
    return harmless(value if isinstance(value, str) else repr(value))


def plural(count: int, what: str) -> str:
    """Returns a count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def counts(figures: Mapping[str, int]) -> str:
    """Returns each count that is not 0 with its name."""
    return ", ".join(f"{count:,} {what}" for what, count in figures.items() if count) or "none"


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the most similar known word, as a question; `otherwise` where no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
