"""Whose state directory it is: two pipelines in one would take each other's records for their own."""

from __future__ import annotations

from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import ConfigError


def another_owner(pipeline: Pipeline) -> str:
    """Why the state directory is not this pipeline's, and what to do; empty where it is, or nobody's yet."""
    file = pipeline.layout.owner_lock
    owner = read_contents(file).purpose
    if owner in ("", _name(pipeline)):
        return ""
    return (
        f"{pipeline.layout.state} is that of {owner}, and this is {_name(pipeline)}; give it a `state:` of "
        f"its own, or, if it is the same pipeline under a new name, remove {file}"
    )


def require_own_state(pipeline: Pipeline) -> None:
    """ConfigError where the state directory is another pipeline's."""
    if why := another_owner(pipeline):
        raise ConfigError(f"{pipeline.file}: state: {why}")


def take_up_state(pipeline: Pipeline) -> None:
    """Make what is missing of the state directory and mark it as ours; ConfigError where it is another's."""
    require_own_state(pipeline)
    pipeline.layout.create()
    file = pipeline.layout.owner_lock
    if not read_contents(file).purpose:  # new, or of before there were marks
        Lock.acquire(file, purpose=_name(pipeline)).release()


def _name(pipeline: Pipeline) -> str:
    return f"pipeline {pipeline.name}"
