"""What the shell completes besides words of the command line: names that the pipeline before them has.

Found by file names alone. Where nothing can be read, nothing is offered.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, StateLayout

_STEP = re.compile(r"step-0*(\d+)")
Offer = Callable[[click.Context, click.Parameter, str], list[str]]


def runs(layout: StateLayout, _: str) -> Iterable[str]:
    """Returns the names of the runs."""
    return sorted(_names(layout.runs))


def steps(layout: StateLayout, run: str) -> Iterable[str]:
    """Returns the steps of a run's checkpoints, newest first."""
    found = filter(None, map(_STEP.fullmatch, _names(layout.run(run).checkpoints)))
    return sorted((match[1] for match in found), key=int, reverse=True)


def quarantined(layout: StateLayout, _: str) -> Iterable[str]:
    """Returns the names of what is in quarantine."""
    return sorted(_names(layout.quarantine))


def things(layout: StateLayout, run: str) -> Iterable[str]:
    """Returns what `stoker describe` may be asked for and can be listed at once."""
    daemons = [daemon.replace("_", "-") for daemon in DAEMONS]
    return [*daemons, *steps(layout, run), *quarantined(layout, run)]


def offer(names: Callable[[StateLayout, str], Iterable[str]]) -> Offer:
    """Returns a completion by the FILE that stands before."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        if (pipeline := _pipeline(context)) is None:
            return []
        given = context.params.get("run")
        run = given if isinstance(given, str) else pipeline.train.run
        return [name for name in names(pipeline.layout, run) if name.startswith(begun)]

    return complete


run_option = click.option(
    "--run", shell_complete=offer(runs), help="Another run of this pipeline than the one the file names."
)


def _pipeline(context: click.Context) -> Any:
    """Returns the pipeline of FILE; None where none stands there yet, or none that can be read."""
    if hasattr(found := context.params.get("pipeline"), "layout"):
        return found
    # Where an option has no value yet, click gives no parameter the words before it.
    with contextlib.suppress(StokerError, OSError, IndexError):
        from stoker.config.load import load_pipeline

        return load_pipeline(context.args[0])
    return None


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in directory.iterdir() if entry.is_dir()]
    return []
