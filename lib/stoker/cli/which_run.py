"""Finds runs and checkpoints for the commands that read them."""

from __future__ import annotations

from pathlib import Path

from stoker.cli.options import did_you_mean
from stoker.config.load import load_pipeline
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.errors import UsageError
from stoker.store.layout import RunLayout, StateLayout
from stoker.store.record import read_record
from stoker.supervise.evaluation.promotion import in_force
from stoker.supervise.run.record import Identity, parse_record


def run_names(layout: StateLayout) -> list[str]:
    """Returns the names of all runs that have begun."""
    try:
        return sorted(entry.name for entry in layout.runs.iterdir() if (entry / "run.json").is_file())
    except FileNotFoundError:
        return []


def read_identity(layout: StateLayout, name: str) -> Identity:
    """Returns a run's identity; UsageError for a run that has not begun, DataError for a damaged record."""
    run = layout.run(name)
    try:
        return parse_record(read_record(run.record), run.record).identity
    except FileNotFoundError:
        names = run_names(layout)
        there = f"there are {', '.join(names)}" if names else "nor has any other; wait until data is ready"
        hint = did_you_mean(name, names, there)
        raise UsageError(f"{run.root}: no run of this name has begun; {hint}") from None


def checkpoints_at(path: Path) -> list[Path]:
    """Returns the checkpoints that a path names: the path itself, or all checkpoints in it.

    The path may be a run's directory, its checkpoints/, or its mirror on warm.
    """
    if not path.is_dir():
        why = "is not a directory; a checkpoint is one" if path.exists() else "does not exist"
        raise UsageError(f"{path} {why}; `ls {path.parent}` shows what there is")
    if path.resolve().name.startswith("step-") or (path / "checkpoint.json").exists():
        return [path]
    for below in ("step-*", "checkpoints/step-*", "t*/step-*"):
        if found := sorted(entry for entry in path.glob(below) if entry.is_dir()):
            return found
    raise UsageError(f"{path} holds no checkpoint; name a step-... directory or <state>/runs/<run>")


def run_at(path: Path) -> RunLayout:
    """Returns the run of a pipeline FILE, or of a run's directory or its checkpoints/."""
    if path.is_file():
        pipeline = load_pipeline(path)
        return pipeline.layout.run(pipeline.train.run)
    return RunLayout(path.parent if path.name == "checkpoints" else path)


def promoted_checkpoint(run: RunLayout) -> tuple[Path, str]:
    """Returns the promoted checkpoint of a run, and its digest; UsageError where none is in force."""
    record = read_record(run.promoted) if run.promoted.exists() else None
    digest = in_force(record, ancestry(read_timelines(run.timelines)))
    if record is None or digest is None:
        why = "no checkpoint is promoted, or a rollback went back past it"
        raise UsageError(f"{run.root}: {why}; `stoker evaluations FILE` says more. Or leave out --promoted")
    return run.checkpoints / record["checkpoint"], digest
