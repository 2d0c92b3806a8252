"""Marks a state directory with its pipeline: pipelines that shared one would use each other's records."""

from __future__ import annotations

from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import ConfigError


def another_owner(pipeline: Pipeline) -> str:
    """Returns why the state directory belongs to another pipeline, and the remedy; empty if it does not."""
    file = pipeline.layout.owner_lock
    owner = read_contents(file).purpose
    if owner in ("", _name(pipeline)):
        return ""
    return (
        f"{pipeline.layout.state} is that of {owner}, and this is {_name(pipeline)}; give it a `state:` of "
        f"its own, or, if it is the same pipeline under a new name, remove {file}"
    )


def require_own_state(pipeline: Pipeline) -> None:
    """Raises ConfigError where the state directory belongs to another pipeline."""
    if why := another_owner(pipeline):
        raise ConfigError(f"{pipeline.file}: state: {why}")


def take_up_state(pipeline: Pipeline) -> None:
    """Creates missing parts of the state directory and marks it as this pipeline's.

    Raises ConfigError where it belongs to another pipeline.
    """
    require_own_state(pipeline)
    pipeline.layout.create()
    file = pipeline.layout.owner_lock
    if not read_contents(file).purpose:  # new, or from a version without marks
        Lock.acquire(file, purpose=_name(pipeline)).release()


def _name(pipeline: Pipeline) -> str:
    return f"pipeline {pipeline.name}"
