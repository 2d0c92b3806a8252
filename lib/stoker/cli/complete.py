"""What the shell completes besides words of the command line: names that the pipeline before them has.

Found by the names of directories alone. Where nothing can be read, nothing is offered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stoker.store.errors import StokerError

STEP = "step-"


def offer(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Returns a completion of these kinds (`run`, `step`, `quarantined`) by the FILE that stands before."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        if (pipeline := _pipeline(context)) is None:
            return []
        run, layout = context.params.get("run"), pipeline.layout
        of_run = layout.run(run if isinstance(run, str) else pipeline.train.run)
        sealed = sorted((name for name in _names(of_run.checkpoints) if name.startswith(STEP)), reverse=True)
        steps = [name.removeprefix(STEP).lstrip("0") for name in sealed]
        found = {"run": _names(layout.runs), "step": steps, "quarantined": _names(layout.quarantine)}
        return [name for kind in kinds for name in found[kind] if name.startswith(begun)]

    return complete


run_option = click.option(
    "--run", shell_complete=offer("run"), help="Another run of this pipeline than the one the file names."
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
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
    return []
