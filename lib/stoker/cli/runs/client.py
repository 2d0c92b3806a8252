"""`stoker client`: prints the file by which a trainer of the user's own talks to the supervisor."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.supervise.external import stoker_client


@click.command(epilog="Example: stoker client > stoker_client.py")
def client() -> None:
    """Print the client for an external trainer: one file, to be copied beside the script.

    It needs Python 3.8 alone, and does nothing without a supervisor. docs/trainers.md shows its use.
    """
    click.echo(Path(stoker_client.__file__).read_text(encoding="utf-8"), nl=False)
