"""A hub worker under test: one task, all that it said, its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.kit.workers.parent import Worker, WorkerExit
from support.loopback_hub import REPO, LoopbackHub
from support.processes import stop_worker
from support.waiting import wait_until


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


def result_of(hub: LoopbackHub, **changes: Any) -> dict[str, Any]:
    """Its result, and nothing else."""
    _, ended = list_hub(hub, **changes)
    assert ended.result is not None, ended
    return ended.result
