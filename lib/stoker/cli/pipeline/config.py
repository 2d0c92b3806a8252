"""`stoker config`: checks a pipeline file, and prints the configuration in force.

`stoker config check` and `stoker run` share these checks. The daemons call the same functions at their start
for the state that they own: the dataset's pin, the run's record, the size of hot.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import pipeline_file, printable
from stoker.cli.pipeline.addresses import address_faults, exposed, word_faults
from stoker.cli.pipeline.beside import linked_checkpoints, shared_ports, whole_run
from stoker.cli.pipeline.prospects import disappointments, of_text, training_days
from stoker.cli.worker_jobs import WorkerFailed, Workers
from stoker.config.checks import Fault, disk_faults, disk_notes, notes
from stoker.config.document import dotted
from stoker.config.load import docs_dir, refuse
from stoker.config.phase_checks import phase_memory
from stoker.config.places import existing, nested_through_links
from stoker.config.schema import Pipeline, Source
from stoker.config.show import effective_yaml
from stoker.config.units import format_count
from stoker.corpus.http.remote_file import read_urls
from stoker.corpus.records.dataset import DatasetPin, read_pin
from stoker.corpus.records.sources import read_sources
from stoker.corpus.source.folder import DEFAULT_INCLUDE
from stoker.corpus.source.remote_listing import repo_of
from stoker.kit.lock import another_owner
from stoker.kit.metrics import Metrics
from stoker.kit.workers.pool import Activity
from stoker.shards.format.pinned import asked_of_tokenizer, columns_asked, pin_faults
from stoker.store.errors import ConfigError, DataError, StokerError, StorageError
from stoker.store.record import RecordDamaged, parse_json, read_record
from stoker.supervise.external.program import working_directory
from stoker.supervise.run.gates import DataInView
from stoker.supervise.run.numerics_record import of_checkpoint, optimizer_name
from stoker.supervise.run.origin import cannot_begin
from stoker.supervise.run.planner import in_view
from stoker.supervise.run.record import configured, parse_record, pinned, refusal
from stoker.systemd.credentials import secret_file_flaw
from stoker.training.model.transformers_config import config_differences

# The key of each value of a run's identity that the file sets.
IDENTITY_KEYS = {
    "seed": ("train", "seed"),
    "dataset": ("dataset", "name"),
    "dataset_version": ("dataset", "version"),
    "init_from": ("train", "init_from"),
}
SURVEY = Activity("survey", "stoker.corpus.staging.survey_worker", silent_s=60.0)


@click.group(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
def config() -> None:
    """Check a pipeline file, or print the configuration in force."""


@config.command(epilog="Example: stoker config check /etc/stoker/fineweb.yaml")
@pipeline_file
def check(pipeline: Pipeline) -> None:
    """Check a pipeline file.

    Every problem is shown with its line, its key and the value to write instead: problems of the file itself,
    and conflicts with the state directory, the disks and the source. `stoker run` makes the same checks. Exit
    code 78: something is wrong.
    """
    for warning in checked(pipeline, *address_faults(pipeline)):
        click.echo(f"warning: {warning}")
    for line in (*phase_memory(pipeline.train), *_suites(pipeline)[2]):
        click.echo(line)
    click.echo(f"ok: {_summary(pipeline)}")


@config.command(epilog="Example: STOKER_TRAIN__STEPS=1000 stoker config show /etc/stoker/fineweb.yaml")
@pipeline_file
def show(pipeline: Pipeline) -> None:
    """Print the configuration in force as YAML.

    It combines defaults, the file and STOKER_* variables; possible secrets are masked.
    """
    click.echo(effective_yaml(pipeline), nl=False)


@config.command(epilog="Example: stoker config schema > /etc/stoker/schema.json")
def schema() -> None:
    """Print the JSON Schema of pipeline files, by which an editor completes and checks them.

    The first line of a file names it to editors that have the YAML language server:
    `# yaml-language-server: $schema=/etc/stoker/schema.json`.
    """
    click.echo((docs_dir() / "pipeline.schema.json").read_text(encoding="utf-8"), nl=False)


def _summary(pipeline: Pipeline) -> str:
    train, source = pipeline.train, pipeline.dataset.source
    if not train.follows_plan:
        fed = f"dataset {pipeline.dataset.name} -> " if pipeline.has_data else ""
        ours = f"{fed}run {train.run} by {Path((train.command or ('',))[0]).name}"
        return f"pipeline {pipeline.name}: {ours} in {working_directory(pipeline)}; state in {pipeline.state}"
    steps, tokens = whole_run(pipeline)
    return (
        f"pipeline {pipeline.name}: {source.kind} {source.place} -> dataset {pipeline.dataset.name} "
        f"version {pipeline.dataset.version} -> run {train.run}: {steps} steps, "
        f"{format_count(tokens)} tokens; state in {pipeline.state}"
    )


def checked(pipeline: Pipeline, *known: Fault) -> list[str]:
    """Returns warnings; raises ConfigError for faults that the daemons would refuse, and those known."""
    faults, warnings = findings(pipeline)
    refuse(pipeline, [*known, *faults])
    return [f"{dotted(warning.path)}: {printable(warning.text)}" for warning in warnings]


def findings(pipeline: Pipeline) -> tuple[list[Fault], list[Fault]]:
    """Returns faults, each of which would end a daemon or block it without end, and warnings.

    Raises ConfigError where the tokenizer's file does not exist.
    """
    if not pipeline.has_data:
        faults = [*_surroundings(pipeline), *_run_faults(pipeline, None), *_program_faults(pipeline)]
        return faults, [*notes(pipeline), *shared_ports(pipeline), *exposed(pipeline)]
    asked_of_tokenizer(pipeline)
    seen, whole = _survey(pipeline), None
    faults, warnings = _columns(pipeline, seen)
    faults += [*_surroundings(pipeline), *_program_faults(pipeline)]
    if (capacity := _capacity(pipeline.hot)) is not None:
        faults += disk_faults(pipeline, capacity)
        warnings += disk_notes(pipeline, capacity)
    try:
        pin = None
        # the stage-shard loop moves a damaged pin into quarantine and writes another
        with contextlib.suppress(RecordDamaged):
            pin = read_pin(pipeline.layout, pipeline.dataset.name)
        faults += [*(pin_faults(pipeline, pin) if pin is not None else ()), *_run_faults(pipeline, pin)]
        whole = _whole(pipeline, pin, seen)
    except StorageError as error:
        warnings.append(Fault(("state",), f"{error}; the file is not checked against what is there"))
    of_suites = _suites(pipeline)
    faults += of_suites[0]
    coming = disappointments(pipeline, whole, training_days(pipeline)) if pipeline.train.follows_plan else []
    warnings = [*notes(pipeline, whole_run(pipeline)[0]), *warnings, *shared_ports(pipeline)]
    return faults, [*warnings, *exposed(pipeline), *_source_warnings(pipeline, seen), *coming, *of_suites[1]]


def _suites(pipeline: Pipeline) -> tuple[list[Fault], list[Fault], list[str]]:
    """Returns what the extra of evaluations says of their suites: faults, warnings and what they can show."""
    if not pipeline.evaluations:
        return [], [], []
    if not (importlib.util.find_spec("stoker.evaluation") and importlib.util.find_spec("lm_eval")):
        text = "need lm_eval, which is not installed; `pip install 'stoker[eval]'` installs it"
        return [Fault(("evaluations",), text)], [], []
    found: tuple[list[Fault], list[Fault], list[str]]
    found = importlib.import_module("stoker.evaluation.outlook").outlook(pipeline)
    return found


def _surroundings(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields faults of this machine and its environment."""
    if why := another_owner(pipeline):
        yield Fault(("state",), why)
    yield from word_faults(pipeline)
    yield from (Fault(*found) for found in nested_through_links(pipeline))
    yield from linked_checkpoints(pipeline)
    metrics, source = Metrics("config"), pipeline.dataset.source
    try:
        metrics.serve(pipeline.metrics.address, 0)
        metrics.close()
    except ConfigError as error:
        yield Fault(("metrics", "address"), str(error))
    try:
        repo_of(source)
    except ConfigError as error:
        yield Fault(("dataset", "source", "endpoint"), str(error))


def _program_faults(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields what would keep an external trainer from starting."""
    command, directory = pipeline.train.command, working_directory(pipeline)
    if command is None:
        return
    if not directory.is_dir():
        why = "does not exist" if not directory.exists() else "is not a directory"
        yield Fault(("train", "external", "directory"), f"{directory} {why}; make it, or name another")
        return
    name = command[0]
    if not shutil.which(directory / name if "/" in name else name):
        there = directory if "/" in name else "PATH"
        why = f"{name!r} is no program in {there} that may be executed; name one, best by its whole path"
        yield Fault(("train", "command"), why)


def _run_faults(pipeline: Pipeline, pin: DatasetPin | None) -> Iterator[Fault]:
    """Yields the settings with which the existing run cannot continue."""
    layout = pipeline.layout.run(pipeline.train.run)
    try:
        identity = parse_record(read_record(layout.record), layout.record).identity
    except (FileNotFoundError, RecordDamaged):
        if (why := _origin_fault(pipeline, pin)) is not None:
            yield Fault(("train", "init_from"), why)
        return
    except DataError as problem:
        yield Fault(("train", "run"), str(problem))
        return
    wanted = {**(pinned(pin) if pin is not None else {}), **configured(pipeline)}
    if why := refusal(pipeline, identity, wanted):
        differing = (key for name, key in IDENTITY_KEYS.items() if wanted[name] != getattr(identity, name))
        yield Fault(next(differing, ("train", "run")), why)
    began, optimizer = _newest_settings(layout.checkpoints)
    changes = [
        f"{key} is {json.dumps(was)} in its newest checkpoint and {json.dumps(value)} now"
        for key, value in pipeline.train.model.model_dump(mode="json").items()
        # model.json leaves out a key that is off.
        if began and (was := began.get(key, False)) != value
    ]
    advice = "Put the old value back, or begin another run with another train.run"
    if changes:
        yield Fault(("train", "model"), f"run {identity.run} cannot continue: {'; '.join(changes)}. {advice}")
    now = pipeline.train.optimizer.name
    if optimizer not in ("", now):
        text = (
            f"run {identity.run} cannot continue: its newest checkpoint was made with {optimizer}, not {now}"
        )
        yield Fault(("train", "optimizer", "name"), f"{text}. {advice}")


def _origin_fault(pipeline: Pipeline, pin: DatasetPin | None) -> str | None:
    """Returns why a new run cannot begin with `init_from`, by its description alone; None where it can."""
    train, origin = pipeline.train, pipeline.train.init_from
    if origin is None or (train.follows_plan and (origin / "checkpoint.json").is_file()):
        return None
    if not train.follows_plan:
        return None if origin.exists() else f"{origin} does not exist; name your trainer's checkpoint"
    try:
        found = config_differences(origin, train.model.body(), pin.tokenizer.vocab_size if pin else None)
    except (OSError, DataError) as problem:
        what = "is no checkpoint, and no model in the layout of transformers"
        return f"{origin} {what}: {problem}; name a step-... directory, or that of a model"
    return cannot_begin(origin, found) if found else None


def _newest_settings(checkpoints: Path) -> tuple[Mapping[str, Any], str]:
    """Returns the model and the optimizer's name of the newest checkpoint, both empty where it tells none."""
    newest = max(checkpoints.glob("step-*"), default=None)
    if newest is None:
        return {}, ""
    try:
        model = dict(parse_json((newest / "model.json").read_bytes()))
        return model, optimizer_name(of_checkpoint(newest))
    except (OSError, ValueError, TypeError, StokerError):  # the supervisor handles a damaged checkpoint
        return {}, ""


def _survey(pipeline: Pipeline) -> dict[str, Any]:
    """Returns a worker's survey of a source folder; an empty dict for a source that is fetched."""
    dataset = pipeline.dataset
    if dataset.source.path is None:
        return {}
    task = {
        "root": str(dataset.source.path),
        "include": dataset.source.include,
        "exclude": dataset.source.exclude,
        **columns_asked(pipeline, None),
    }
    try:
        with Workers() as workers:
            return workers.run(SURVEY, task, "it cannot be looked through")
    except WorkerFailed as failed:
        return {"problem": str(failed)}


def _columns(pipeline: Pipeline, seen: Mapping[str, Any]) -> tuple[list[Fault], list[Fault]]:
    """Returns faults and warnings for columns.

    A text column missing from every file is a fault; missing from some files, or a filter's column, it is a
    warning.
    """
    if not seen.get("flaw"):
        return [], []
    path, detail, column = seen["flaw"]
    named = "text_column" if pipeline.dataset.tokens_column is None else "tokens_column"
    if seen["with_text"]:
        key = named if column == pipeline.dataset.column else "filters"
        return [], [Fault(("dataset", key), f"{path}: {detail}; a file like this is quarantined")]
    text = f"none of {seen['looked']} files has it: {path}: {detail}; name the column that has it"
    return [Fault(("dataset", named), text)], []


def _source_warnings(pipeline: Pipeline, seen: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields reasons for which a run would wait: no source folder, or no readable file in it."""
    source = pipeline.dataset.source
    if source.path is None:
        yield from _remote_warnings(source)
    elif "problem" in seen:
        why = seen["problem"].replace("{globs}", ", ".join(source.include or DEFAULT_INCLUDE))
        yield Fault(("dataset", "source", "path"), f"{source.path} {why}; a run waits until that changes")


def _remote_warnings(source: Source) -> Iterator[Fault]:
    if source.token_file is not None and (flaw := secret_file_flaw(source.token_file)):
        yield Fault(("dataset", "source", "token_file"), flaw)
    if source.urls_file is not None:
        try:
            read_urls(source.urls_file.read_text(), str(source.urls_file))
        except (OSError, ConfigError, UnicodeDecodeError) as error:
            yield Fault(("dataset", "source", "urls_file"), str(error))


def _whole(pipeline: Pipeline, pin: DatasetPin | None, seen: Mapping[str, Any]) -> DataInView | None:
    """Returns all data that the dataset will have: counted if complete, else estimated from the source."""
    if pin is not None and pin.complete:
        return in_view(pin, read_sources(pipeline.layout, pin.dataset))
    if not seen.get("looked_bytes"):
        return None
    text_bytes = seen["text_bytes"] / seen["looked_bytes"] * seen["bytes"]
    return of_text(pipeline, seen["files"], text_bytes)


def _capacity(path: Path) -> int | None:
    """Returns the size in bytes of the file system that holds path or will hold it; None if unknown."""
    try:
        return shutil.disk_usage(existing(path)).total
    except OSError:
        return None
