"""`stoker config`: is a pipeline file right, and what is in force."""

from __future__ import annotations

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.checks import checked
from stoker.config.schema import Pipeline
from stoker.config.show import effective_yaml
from stoker.config.units import format_count


@click.group(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
def config() -> None:
    """Check a pipeline file, or show what is in force."""


@config.command(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
@pipeline_file
def check(pipeline: Pipeline) -> None:
    """Check a pipeline file.

    Every problem is told with its line, its key and what to write instead: those of the file itself, and
    those that show against the state directory, the disks and the source. `stoker run` checks the same.
    Exit code 78: something is wrong.
    """
    for warning in checked(pipeline):
        click.echo(f"warning: {warning}")
    click.echo(f"ok: {_summary(pipeline)}")


@config.command(epilog="Example: STOKER_TRAIN__STEPS=1000 stoker config show /etc/stoker/fineweb.yaml")
@pipeline_file
def show(pipeline: Pipeline) -> None:
    """Print the configuration in force as YAML.

    Defaults, the file and STOKER_* variables together; what may be a secret is masked.
    """
    click.echo(effective_yaml(pipeline), nl=False)


def _summary(pipeline: Pipeline) -> str:
    train, source = pipeline.train, pipeline.dataset.source
    tokens = train.horizon * train.seq_len * train.global_batch
    origin = source.path or source.repo or source.urls_file
    return (
        f"pipeline {pipeline.name}: {source.kind} {origin} -> dataset {pipeline.dataset.name} "
        f"version {pipeline.dataset.version} -> run {train.run}: {train.horizon} steps, "
        f"{format_count(tokens)} tokens; state in {pipeline.state}"
    )
