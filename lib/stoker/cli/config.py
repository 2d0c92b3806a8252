"""`stoker config`: is a pipeline file right, and what is in force."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stoker.cli.options import pipeline_file
from stoker.config.checks import Fault, notes
from stoker.config.disk import disk_faults, disk_notes
from stoker.config.document import Problem, dotted, read_document
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline, Source
from stoker.config.show import effective_yaml
from stoker.config.units import format_count
from stoker.corpus.folder import (
    DEFAULT_INCLUDE,
    FileSeen,
    Refused,
    Selection,
    Unreadable,
    look_through,
)
from stoker.corpus.urls import read_urls
from stoker.store.errors import ConfigError


@click.group(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
def config() -> None:
    """Check a pipeline file, or show what is in force."""


@config.command(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
@pipeline_file
def check(file: Path) -> None:
    """Check a pipeline file.

    Every problem is told with its line, its key and what to write instead. Exit code 78: something is wrong.
    """
    pipeline = load_pipeline(file)
    capacity = _capacity(pipeline.hot)
    if capacity is not None and (faults := disk_faults(pipeline, capacity)):
        document = read_document(pipeline.file)
        told = [Problem(document.mark(fault.path), dotted(fault.path), fault.text) for fault in faults]
        raise ConfigError("\n".join(map(str, told)))
    on_this_disk = disk_notes(pipeline, capacity) if capacity is not None else []
    for note in [*notes(pipeline), *on_this_disk, *_source_notes(pipeline)]:
        click.echo(f"note: {dotted(note.path)}: {note.text}")
    click.echo(f"ok: {_summary(pipeline)}")


@config.command(epilog="Example: STOKER_TRAIN__STEPS=1000 stoker config show /etc/stoker/fineweb.yaml")
@pipeline_file
def show(file: Path) -> None:
    """Print the configuration in force as YAML.

    Defaults, the file and STOKER_* variables together; what may be a secret is masked.
    """
    click.echo(effective_yaml(load_pipeline(file)), nl=False)


def _source_notes(pipeline: Pipeline) -> list[Fault]:
    """What a run would wait for, or refuse: no source folder, nothing in it to read, other columns."""
    source = pipeline.dataset.source
    if source.path is None:
        return _remote_notes(source)
    refused = ""
    try:
        for found in look_through(source.path, Selection(source.include, source.exclude)):
            if isinstance(found, FileSeen):
                return _column_notes(pipeline, source.path / found.path)
            if isinstance(found, Refused | Unreadable):
                refused = refused or f" ({found.path}: {found.reason})"
        globs = ", ".join(source.include or DEFAULT_INCLUDE)
        why = f"{source.path} holds no file to read that matches {globs}{refused}"
    except OSError as error:
        why = f"{source.path} cannot be read: {error.strerror}"
    return [Fault(("dataset", "source", "path"), f"{why}; a run waits until that changes")]


def _remote_notes(source: Source) -> list[Fault]:
    """What lies on this machine of a source that is fetched."""
    found = []
    if source.token_file is not None and not os.access(source.token_file, os.R_OK):
        found.append(Fault(("dataset", "source", "token_file"), f"{source.token_file} cannot be read"))
    if source.urls_file is not None:
        try:
            read_urls(source.urls_file.read_text(), str(source.urls_file))
        except (OSError, ConfigError, UnicodeDecodeError) as error:
            found.append(Fault(("dataset", "source", "urls_file"), str(error)))
    return found


def _column_notes(pipeline: Pipeline, file: Path) -> list[Fault]:
    """The columns asked for, looked up in one file of the source: a wrong name would quarantine them all."""
    from stoker.corpus.preflight import preflight

    dataset = pipeline.dataset
    columns = [*dataset.filters.at_least, *(["language"] if dataset.filters.languages else [])]
    try:
        flaw = preflight(file, dataset.text_column, columns)
    except OSError as error:
        return [Fault(("dataset", "source", "path"), f"{file} cannot be read: {error.strerror}")]
    if flaw is None or flaw.reason not in ("missing_column", "column_type"):
        return []  # a damaged file is one file's matter
    key = "text_column" if flaw.column == dataset.text_column else "filters"
    return [Fault(("dataset", key), f"{file}: {flaw.detail}; a file like this is quarantined")]


def _capacity(path: Path) -> int | None:
    """The size in bytes of the file system that holds path, or will; None where that cannot be told."""
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return found.f_blocks * found.f_frsize
    return None


def _summary(pipeline: Pipeline) -> str:
    train, source = pipeline.train, pipeline.dataset.source
    tokens = train.horizon * train.seq_len * train.global_batch
    origin = source.path or source.repo or source.urls_file
    return (
        f"pipeline {pipeline.name}: {source.kind} {origin} -> dataset {pipeline.dataset.name} "
        f"version {pipeline.dataset.version} -> run {train.run}: {train.horizon} steps, "
        f"{format_count(tokens)} tokens; state in {pipeline.state}"
    )
