"""How fast a source can be read, measured for some seconds and keeping nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.cli.data.list_source import FINAL, Listed
from stoker.cli.data.source_state import Survey
from stoker.cli.worker_jobs import Job, WorkerFailed, work, work_off
from stoker.config.schema import Pipeline
from stoker.corpus.source.folder import FileSeen

PROBE_S = 5.0
PROBE_QUIET_S = 60.0


@dataclass(frozen=True)
class Measured:
    """A rate in bytes a second (0: nothing came), over so long, `files` at once; or why there is none."""

    rate: float = 0.0
    seconds: float = 0.0
    files: int = 0
    mean_size: float | None = None  # of the files whose size the server told
    trouble: str = ""
    final: bool = False


def measure_fetching(pipeline: Pipeline, listed: Listed, survey: Survey) -> Measured:
    """Read the first files that are missing for some seconds, as many at once as the watchdog would."""
    source, repo = pipeline.dataset.source, listed.repo
    task = {
        "files": [wanted.remote(repo, listed.revision).to_fields() for wanted in survey.open],
        "seconds": PROBE_S,
        "hub": repo and {"repo": repo.repo, "repo_type": repo.repo_type, "endpoint": repo.endpoint},
        "token_file": None if source.token_file is None else str(source.token_file),
    }
    try:
        result = work(
            Job("stoker.corpus.source.probe_worker", task, PROBE_QUIET_S), "the rate cannot be measured"
        )
    except WorkerFailed as failure:
        return Measured(trouble=str(failure))
    if result["status"] == "failed":
        final = result["class"] in FINAL
        return Measured(trouble=f"the rate cannot be measured: {result['reason']}", final=final)
    seconds, sizes = float(result["seconds"]), result["sizes"]
    mean = sum(sizes) / len(sizes) if sizes else None
    return Measured(result["bytes"] / max(seconds, 1e-3), seconds, len(survey.open), mean)


def measure_reading(pipeline: Pipeline, survey: Survey) -> Measured:
    """Hash the first files for some seconds, as many at once as the watchdog would, past the page cache."""
    read: dict[str, int] = {}
    began = time.monotonic()
    jobs = (_reading(pipeline.source_root, file, read) for file in survey.to_read)
    for job, ended in work_off(jobs, pipeline.download.files_at_once, for_s=PROBE_S):
        if ended.result is None:
            return Measured(trouble=f"the rate cannot be measured: {job.note.path}: {ended.reason()}")
        read[job.note.path] = job.note.size
    took_s = time.monotonic() - began
    return Measured(sum(read.values()) / max(took_s, 1e-3), took_s, len(survey.to_read))


def _reading(root: Path, file: FileSeen, read: dict[str, int]) -> Job:
    task = {
        "root": str(root),
        "path": file.path,
        "size": file.size,
        "mtime_ns": file.mtime_ns,
        "inode": file.inode,
    }

    def hear(_: object, message: Mapping[str, Any]) -> None:
        if message["kind"] == "hashed":
            read[file.path] = int(message["bytes"])

    return Job("stoker.corpus.source.hash_worker", task, PROBE_QUIET_S, note=file, hear=hear)
