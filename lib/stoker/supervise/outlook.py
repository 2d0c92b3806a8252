"""What `stoker status` and its like judge a pipeline by, read from disk: no daemon has to run."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.observe.pace import Left, Point, time_left, unix
from stoker.observe.samples import read_samples
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts
from stoker.store.errors import StokerError
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_whole
from stoker.supervise.run.launch_record import read_launches
from stoker.supervise.run.step_rows import rows_of

DISK_KNOWN_AFTER_S = 3_600.0  # a file that was just built tells nothing of the days to come
TAIL_BYTES = 4 << 20  # of a training log: some 12,000 rows


def gather(pipeline: Pipeline, daemons: Mapping[str, Mapping[str, Any]] | None = None) -> Facts:
    """Returns the facts of a pipeline; `daemons` are their statuses where they were read before."""
    facts = seen(pipeline, daemons)
    left = times_left(pipeline, facts.daemons)
    return replace(facts, left=str(left["run"]) if "run" in left else "", times=left)


def seen(pipeline: Pipeline, daemons: Mapping[str, Mapping[str, Any]] | None = None) -> Facts:
    """Returns the facts without the times left, which take some tenths of a second."""
    found = read_status(pipeline.layout) if daemons is None else daemons
    needed = found if pipeline.has_data else {TRAIN_SUPERVISOR: found[TRAIN_SUPERVISOR]}
    return Facts(pipeline.name, str(pipeline.file), needed, run_record(pipeline))


def run_record(pipeline: Pipeline) -> Mapping[str, Any] | None:
    """Returns the body of run.json; None where the run has not begun or the record cannot be read now."""
    with contextlib.suppress(StokerError, OSError):
        return read_whole(pipeline.layout.run(pipeline.train.run).record)
    return None


def times_left(pipeline: Pipeline, daemons: Mapping[str, Mapping[str, Any]]) -> dict[str, Left]:
    """Returns how long the rest of `download`, `sharding` and `run` takes where they are not done, and how
    long until a disk ("hot disk") that fills is full.
    """
    now, found = time.time(), dict[str, Left]()
    for work, daemon in (("download", DOWNLOAD_WATCHDOG), ("sharding", STAGE_SHARD)):
        body = daemons.get(daemon, {}).get("body", {})
        if rest := (body.get("bytes_of") or 0) - (body.get("bytes_done") or 0):
            samples = _samples(pipeline.layout.samples(daemon), "bytes_done")
            found[work] = time_left(samples, rest, now)
    body = daemons[TRAIN_SUPERVISOR]["body"]
    steps = body.get("steps") or (pipeline.train.steps if pipeline.train.follows_plan else None)
    if steps and (rest := steps - (body.get("step") or 0)) > 0:
        try:
            found["run"] = time_left(_steps(pipeline), rest, now)
        except (StokerError, OSError, ValueError) as error:  # the rest of the status is told all the same
            found["run"] = Left(why=str(error))
    shards = daemons.get(STAGE_SHARD, {})
    # Nothing fills the disks of a pipeline that is stopped.
    disks = shards.get("body", {}).get("disks", {}) if shards.get("running") else {}
    for disk, size in disks.items():
        samples = _samples(pipeline.layout.samples(STAGE_SHARD), f"{disk}_free_bytes", sign=-1)
        free_bytes = size.get("free_bytes") or 0
        left = time_left(samples, free_bytes, now, can_fall=True, known_after_s=DISK_KNOWN_AFTER_S)
        if left.least_s:
            found[f"{disk} disk"] = left
    return found


def _samples(file: Path, column: str, sign: int = 1) -> Iterator[Point]:
    """Yields a column of the samples; the daemon's clock, which starts again at 0, tells its restarts."""
    session, before_s = 0, 0.0
    for row in read_samples(file):
        with contextlib.suppress(KeyError, ValueError):
            elapsed_s, at, value = float(row["elapsed_s"]), unix(row["time"]), sign * float(row[column])
            session, before_s = session + (elapsed_s < before_s), elapsed_s
            yield Point(at, value, session)


def _steps(pipeline: Pipeline) -> Iterator[Point]:
    """Yields the steps of the run's history as they were made, a session for each launch."""
    layout = pipeline.layout.run(pipeline.train.run)
    launched = [unix(one.time) for one in read_launches(layout.launches)[0]]
    for row in rows_of(layout.metrics, tail_bytes=TAIL_BYTES):
        if "loss" in row:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                at = unix(row["time"])
                yield Point(at, row["step"], f"{row['timeline']} {bisect(launched, at)}")
