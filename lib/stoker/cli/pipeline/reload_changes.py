"""What `stoker reload` would change, and from when on each change counts; signals and writes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import click

from stoker.cli.options import one_line
from stoker.cli.pipeline.config import findings
from stoker.config.changes import KEPT, WHEN, When, changed_keys, is_of
from stoker.config.document import dotted
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.show import recorded
from stoker.kit.handover import VARIABLE
from stoker.kit.process import ProcessId, environment_of
from stoker.observe.status import read_configuration
from stoker.store.errors import ConfigError, UnavailableError

HEAD = ("key", "now", "in the file", "counts")
MOST_CHARS = 40  # of a value: a command may be as long as it likes


def show_changes(pipeline: Pipeline, running: Mapping[str, ProcessId]) -> int:
    """Prints a table of the changed keys; returns the exit code that a reload would have."""
    asked = load_pipeline(pipeline.file, _environment(next(iter(running.values()))))
    now, rows = recorded(asked), dict[str, tuple[str, str, When]]()
    for daemon in running:
        if (before := read_configuration(pipeline.layout, daemon)) is None:
            name = daemon.replace("_", "-")
            raise UnavailableError(f"the {name} does not say what its configuration is; reload it once")
        for key, when in changed_keys(daemon, before, now).items():
            if key not in rows or WHEN.index(when) > WHEN.index(rows[key][2]):
                rows[key] = _value(before, key), _value(now, key), when
    if not rows:
        click.echo("no key changed")
        return 0
    refused = {dotted(fault.path): fault.text for fault in findings(asked)[0]}
    table = [HEAD, *((key, old, new, _counts(key, when, refused)) for key, (old, new, when) in rows.items())]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        click.echo("  ".join((*map(str.ljust, row, widths), row[3])))
    is_refused = any(row[3].startswith(WHEN[2:]) for row in table)
    return ConfigError.exit_code if is_refused else 0


def _counts(key: str, when: When, refused: Mapping[str, str]) -> str:
    """Returns from when on a key counts, or why it never does: what a daemon's start refuses is worse."""
    reasons = [text for other, text in refused.items() if is_of(key, (other,))]
    return f"refused: {one_line(reasons[0])}" if reasons else f"{when}: {KEPT}" if when == WHEN[2] else when


def _environment(process: ProcessId) -> Mapping[str, str]:
    """Returns the variables by which a daemon reads the file; this process's where it is another user's."""
    try:
        return {name: value for name, value in environment_of(process).items() if name != VARIABLE}
    except OSError:
        return os.environ


def _value(config: Mapping[str, Any], key: str) -> str:
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    text = one_line(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}..."
