"""A fetch worker under test: wishes in, messages out, as the daemon would have it."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stoker.corpus.http.hub import HubRepo
from stoker.corpus.http.remote_file import RemoteFile
from stoker.kit.workers.parent import Worker, WorkerExit
from support.loopback_hub import REPO, LoopbackHub
from support.processes import stop_worker
from support.waiting import LONG_S, wait_until

MODULE = "stoker.corpus.fetch.fetch_worker"
DATASET = "data"


def fetch_task(root: Path, hub: LoopbackHub, **changes: Any) -> dict[str, Any]:
    """A task with short waits and small commits."""
    return {
        "root": str(root),
        "dataset": DATASET,
        "expected": False,
        "files_at_once": 4,
        "bandwidth": None,
        "min_rate": 0,
        "connect_s": 20.0,
        "read_s": LONG_S,
        "commit_s": 0.05,
        "backoff": [0.01, 0.05],
        "attempts": 3,
        "floor": 0,
        "keep_files": 3,
        "keep_bytes": 1 << 30,
        "hub": {"repo": REPO, "repo_type": "dataset", "endpoint": hub.endpoint},
        "token_file": None,
        "forget": [],
        **changes,
    }


def hub_file(hub: LoopbackHub, path: str, data: bytes, *, repo: str = REPO) -> RemoteFile:
    """Store a file in a repository; the wish for it at the commit that this makes."""
    sha256 = hub.put(path, data, repo=f"dataset/{repo}")
    commit = hub.control("head", repo=f"dataset/{repo}")
    lfs = path.endswith((".parquet", ".bin"))
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    url = HubRepo(repo, endpoint=hub.endpoint).file_url(commit, path)
    file = RemoteFile.listed(path, len(data), sha256 if lfs else None, git, url)
    return replace(file, revision=commit)


def plain_file(hub: LoopbackHub, name: str, data: bytes, *, summed: bool = True) -> RemoteFile:
    """Store a file on the plain web server; the wish for it, with its sum or without."""
    sha256 = hub.put(name, data, repo="urls")
    return RemoteFile.listed(name, None, sha256 if summed else None, None, hub.url(name))


class Fetching:
    """One worker and all that it said."""

    def __init__(self, task: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> None:
        clean = {"HF_TOKEN": "", "CREDENTIALS_DIRECTORY": "", "NO_PROXY": "*", **(environ or {})}
        self.worker = Worker(MODULE, task, name="fetch", environ=clean, keep_open=True)
        self.said: list[dict[str, Any]] = []
        self.ended: WorkerExit | None = None

    def fetch(self, *files: RemoteFile) -> None:
        """Wish for files."""
        for file in files:
            self.worker.send({"fetch": asdict(file)})

    def hear(self) -> None:
        """Take in what was said so far."""
        self.ended = self.ended or self.worker.poll()
        self.said += self.worker.messages()

    def of(self, kind: str, path: str = "") -> list[dict[str, Any]]:
        """What was said of that kind, by a path's part."""
        return [each for each in self.said if each["kind"] == kind and path in each.get("path", "")]

    def until(self, kind: str, path: str = "", count: int = 1) -> dict[str, Any]:
        """Wait for the count-th message of that kind."""

        def heard() -> bool:
            self.hear()
            assert self.ended is None or len(self.of(kind, path)) >= count, (self.ended, self.said)
            return len(self.of(kind, path)) >= count

        wait_until(heard, what=f"{count} x {kind} {path}")
        return self.of(kind, path)[count - 1]

    def until_true(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something else, hearing meanwhile so that the worker never blocks on its pipe."""

        def holds() -> bool:
            self.hear()
            return condition()

        wait_until(holds, what=what)

    def finish(self) -> WorkerExit:
        """Close its input and wait for its end."""
        self.worker.close_input()
        self.until_true(lambda: self.ended is not None, "the worker's end")
        assert self.ended is not None
        return self.ended

    def stop(self) -> WorkerExit:
        """TERM, and its end."""
        ended = stop_worker(self.worker, LONG_S)
        self.hear()
        assert ended is not None
        return ended

    def kill(self) -> None:
        """kill -9, and reap."""
        if self.ended is None:
            os.kill(self.worker.pid, signal.SIGKILL)
            self.until_true(lambda: self.ended is not None, "the killed worker's end")

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        pages = int(Path(f"/proc/{self.worker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
