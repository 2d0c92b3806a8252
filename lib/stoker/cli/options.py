"""What several commands share: the pipeline file, JSON on request."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from stoker.kit.terminal.sentences import harmless

F = TypeVar("F", bound=Callable[..., Any])
# Whether it is there and may be read is told by who reads it, with what to do about it.
PATH = click.Path(path_type=Path, readable=False)


def _load(_context: click.Context, _parameter: click.Parameter, file: Path) -> object:
    from stoker.config.load import load_pipeline  # not for help and version, which need no pipeline

    return load_pipeline(file)


# The one positional argument of most commands; the loader says when it is missing (78).
pipeline_file = click.argument("pipeline", metavar="FILE", type=PATH, callback=_load)


def json_option(function: F) -> F:
    """`--json`: the same facts for a program."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a report.")(function)


def print_json(value: Any) -> None:
    """One JSON value, indented; a name whose bytes are no text is escaped."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    click.echo(text.encode(errors="backslashreplace").decode())


def answer(report: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a report as JSON, or its lines for a person."""
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(map(one_line, lines)))


def printable(text: str) -> str:
    """Text that does nothing to a terminal: control characters but newline and tab as \\x1b and the like."""
    return "".join(sign if sign in "\n\t" else harmless(sign) for sign in text)


def one_line(value: object) -> str:
    """On one line and harmless to a terminal: names come from outside, line breaks and all."""
    return harmless(value if isinstance(value, str) else repr(value))


def plural(count: int, what: str) -> str:
    """A count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def counts(figures: Mapping[str, int]) -> str:
    """Each figure that is not 0 with its name."""
    return ", ".join(f"{count:,} {what}" for what, count in figures.items() if count) or "none"


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The known word most like this one, as a question; `otherwise` where none is like it."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
