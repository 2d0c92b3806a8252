"""A hub worker under test: tasks, all that it said, its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.kit.workers.parent import Worker, WorkerExit
from support.loopback_hub import REPO, LoopbackHub
from support.processes import stop_worker
from support.waiting import wait_until

_TESTS = str(Path(__file__).parents[1])
_shared: list[Worker | None] = []


@contextmanager
def one_worker() -> Iterator[None]:
    """List with one worker meanwhile, where the environment is the usual one."""
    _shared.append(None)
    try:
        yield
    finally:
        worker = _shared.pop()
        if worker is not None:
            stop_worker(worker, 0)


def list_hub(
    hub: LoopbackHub,
    *,
    environ: Mapping[str, str] | None = None,
    repo: str = REPO,
    repo_type: str = "dataset",
    endpoint: str = "",
    **changes: Any,
) -> tuple[list[dict[str, Any]], WorkerExit]:
    """Ask the worker for a listing."""
    task = {
        "hub": {"repo": repo, "repo_type": repo_type, "endpoint": endpoint or hub.endpoint},
        "revision": "main",
        "token_file": None,
        "include": [],
        "exclude": [],
        "pinned": None,
        "known": None,
        **changes,
    }
    clean = {"HF_TOKEN": "", "CREDENTIALS_DIRECTORY": "", "NO_PROXY": "*", **(environ or {})}
    if _shared and environ is None:
        return _heard(task, clean)
    worker = Worker("stoker.corpus.source.hub_worker", task, name="hub", environ=clean)
    said: list[dict[str, Any]] = []

    def ended() -> WorkerExit | None:
        found = worker.poll()
        said.extend(worker.messages())
        return found

    try:
        found = wait_until(ended, what="the hub worker's end")
    finally:
        stop_worker(worker, 0)
    assert found is not None
    return said, found


def _heard(task: dict[str, Any], environ: dict[str, str]) -> tuple[list[dict[str, Any]], WorkerExit]:
    if (worker := _shared[-1]) is None:
        path = os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])
        environ = {**environ, "PYTHONPATH": path}
        worker = Worker("support.hub_lister", task, name="hub", environ=environ, keep_open=True)
        _shared[-1] = worker
    else:
        worker.give(task)
    said: list[dict[str, Any]] = []

    def ended() -> WorkerExit | None:
        words, found = worker.hear()
        said.extend(words)
        return found

    return said, wait_until(ended, what="the listing")


def result_of(hub: LoopbackHub, **changes: Any) -> dict[str, Any]:
    """Its result, and nothing else."""
    _, ended = list_hub(hub, **changes)
    assert ended.result is not None, ended
    return ended.result
