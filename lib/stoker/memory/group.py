"""`stoker memory`: records the memory of a command, shows recordings, and finds what makes memory grow."""

from __future__ import annotations

import click

from stoker.memory.diagnose import diagnose
from stoker.memory.record import record
from stoker.memory.show import show


@click.group(epilog="Example: stoker memory record -o leak.csv -- python train.py")
def memory() -> None:
    """Record what memory a command takes, show it, and find out what makes it grow.

    `record` watches a command or a process, `show` draws a recording or a pipeline's samples, `diagnose`
    reads and tokenizes a parquet file in four ways and names the one that grows.
    """


for command in (record, show, diagnose):
    memory.add_command(command)
