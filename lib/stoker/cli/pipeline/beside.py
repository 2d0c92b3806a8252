"""What lies beside a pipeline file and bears on it: its run so far, links in its state, other pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stoker.checkpoints.retention import candidates, find_checkpoints
from stoker.config.checks import Fault
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.plan.log import read_plan
from stoker.plan.positions import Position
from stoker.plan.timelines import ancestry, read_timelines, skips
from stoker.store.errors import StokerError
from stoker.supervise.run.progress import last_step
from stoker.systemd.units import SYSTEM

OF_MACHINE = SYSTEM.files


def whole_run(pipeline: Pipeline) -> tuple[int, int]:
    """Returns the run's last step and all its tokens, counted from its newest checkpoint."""
    train, layout = pipeline.train, pipeline.layout.run(pipeline.train.run)
    step, tokens, steps = 0, 0, train.horizon
    with contextlib.suppress(StokerError, OSError):  # who needs what is damaged tells it
        timelines = read_timelines(layout.timelines)
        found = candidates(find_checkpoints(layout.checkpoints), ancestry(timelines))
        if (at := next((one.body for one in found if one.body is not None), None)) is not None:
            place, skipped = Position(*at.position), skips(timelines)
            plan = read_plan(layout.plan)
            steps = last_step(train, plan, step=at.step, position=place, tokens=at.tokens, skips=skipped)
            step, tokens = at.step, at.tokens
    return steps, tokens + train.tokens_of(step, steps)


def linked_checkpoints(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields a fault for checkpoints/ that is a link: what is made beside it cannot be renamed into it."""
    place = pipeline.layout.run(pipeline.train.run).checkpoints
    if place.is_symlink():
        why = f"{place} is a symbolic link to {place.readlink()}, and checkpoints are moved by renames"
        yield Fault(("state",), f"{why}; mount that disk there, or set state to a directory on it")


def shared_ports(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the metrics ports that another pipeline, which has run here, asks for, too."""
    ours = _ports(pipeline)
    for file in sorted({*OF_MACHINE.glob("*.yaml"), *pipeline.file.parent.glob("*.yaml")} - {pipeline.file}):
        with contextlib.suppress(StokerError, OSError):  # no pipeline, or not ours to read
            other = load_pipeline(file, {})
            if other.state == pipeline.state or not other.state.exists():
                continue
            for port, key in _ports(other).items():
                if port in ours and other.metrics.address == pipeline.metrics.address:
                    text = f"port {port} is also metrics.ports.{key} of {file}: they cannot run at once"
                    yield Fault(("metrics", "ports", ours[port]), f"{text}; choose another, or 0 for any")


def _ports(pipeline: Pipeline) -> dict[int, str]:
    ports = pipeline.metrics.ports.model_dump()
    return {port: key for key, port in ports.items() if port and (pipeline.has_data or key == "train")}
