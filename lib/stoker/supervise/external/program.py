"""What a launch starts: the built-in trainer, or an external one with what its level is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import path_of
from stoker.checkpoints.format import known_step
from stoker.config.schema import Pipeline
from stoker.config.schema_train import External
from stoker.store.layout import RunLayout
from stoker.supervise.run.launch_record import TRAINER, Launch, trainer_environment

_PLACE = re.compile(r"\{(path|step)\}")
# What the built-in trainer gets besides; an external trainer must not see one of these by accident.
_OF_BUILT_IN = ("PYTHONSAFEPATH", "STOKER_PLAN", "STOKER_TIMELINES")


@dataclass(frozen=True)
class Program:
    """A command in words, its environment, and the directory in which it runs (None: the supervisor's)."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    directory: Path | None = None


def planned_program(
    pipeline: Pipeline, launch: Launch, layout: RunLayout, environ: Mapping[str, str], **_: Any
) -> Program:
    """Returns what a launch starts that follows the plan; `environ` is the supervisor's environment."""
    train, given = pipeline.train, _environment(pipeline, launch, layout, environ)
    if train.command is None:
        return Program(TRAINER, {**given, "STOKER_RANK": "0"})  # its lines in the journal have the rank
    full = {name: value for name, value in given.items() if name != "PYTHONSAFEPATH"}
    return Program(train.command, full, working_directory(pipeline))


def _environment(
    pipeline: Pipeline, launch: Launch, layout: RunLayout, environ: Mapping[str, str]
) -> dict[str, str]:
    # The lines of each trainer in the journal have its pipeline.
    return {**trainer_environment(environ, launch, layout), "STOKER_PIPELINE": pipeline.name}


def external_program(
    pipeline: Pipeline,
    launch: Launch,
    layout: RunLayout,
    environ: Mapping[str, str],
    *,
    micro_batch: int | None = None,
    resumes_from: Mapping[str, Any] | None = None,
) -> Program:
    """Returns what a launch of an external trainer starts.

    `resumes_from` is the checkpoint.json of the checkpoint to resume from, None at the beginning;
    `micro_batch` is what is left of a trainer's after memory ran out.
    """
    external, directory = pipeline.train.external or External(), working_directory(pipeline)
    given = _environment(pipeline, launch, layout, environ)
    path = None if resumes_from is None else path_of(resumes_from, directory)
    step = known_step(resumes_from) if path and resumes_from else None
    ours = {
        "STOKER_RESUME_FROM": str(path or ""),
        "STOKER_RESUME_STEP": "" if step is None else str(step),
        "STOKER_MICRO_BATCH": str(micro_batch or ""),
    }
    if pipeline.has_data:
        ours["STOKER_SHARDS"] = str(pipeline.hot_layout.shards(pipeline.dataset.name))
    kept = {name: value for name, value in given.items() if name not in _OF_BUILT_IN}
    return Program((*(pipeline.train.command or ()), *resuming(external, path, step)), kept | ours, directory)


def working_directory(pipeline: Pipeline) -> Path:
    """Returns where an external trainer runs."""
    external = pipeline.train.external or External()
    return external.directory or pipeline.file.parent


def resuming(external: External, path: Path | None, step: int | None) -> tuple[str, ...]:
    """Returns the words that a command gets at a resume from a path; none at the beginning.

    A step that nobody knows is the word `unknown`.
    """
    if path is None:
        return ()
    named = {"path": str(path), "step": "unknown" if step is None else str(step)}
    return tuple(_PLACE.sub(lambda place: named[place[1]], word) for word in external.resume)
