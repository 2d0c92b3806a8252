"""Fetching over HTTP from this machine: curl and sha256sum, the hub's own client, and the fetch worker."""

from __future__ import annotations

import os
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchlib.runner import Measures, Scenario

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from stoker.corpus.hub import HubRepo
from stoker.kit.worker import Worker
from support.loopback_hub import REPO, LoopbackHub

FILES = 20
FILE_BYTES = int(os.environ.get("STOKER_BENCH_DOWNLOAD_BYTES", str(2 * 10**9))) // FILES
LONGEST_S = 600.0

CLIENT = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], repo_type="dataset", endpoint=sys.argv[2], local_dir=sys.argv[3])
"""


class Download(Scenario):
    """2 GB in 20 files from loopback, whole and checked: the time, and the memory of the fetch worker."""

    name = "download"
    repeats = 3
    limits: ClassVar = {"to_curl": 1.15, "rss_bytes": 120 * 2**20}

    def prepare(self, directory: Path) -> None:
        """Random bytes, and the hub that serves them for as long as this process lives."""
        self._hub = LoopbackHub(directory / "hub", send_buffer=0)
        block = os.urandom(1 << 20)
        for number in range(FILES):
            file = directory / "hub" / "dataset" / REPO / _name(number)
            with file.open("wb") as stream:
                stream.write(number.to_bytes(8, "big"))
                for at in range(8, FILE_BYTES, len(block)):
                    stream.write(block[: FILE_BYTES - at])
        self._hub.__enter__()
        self._commit = self._hub.control("head", repo=f"dataset/{REPO}")  # hashes them, once
        self._sums = {row[0]: row[1] for row in self._hub.control("sums", commit=self._commit)}

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        """The scale first."""
        return {
            "curl, then sha256sum": self._first,
            "huggingface_hub": lambda directory: self._timed(self._client, directory),
            "stoker": lambda directory: self._scaled(self._timed(self._stoker, directory)),
        }

    def _timed(self, run: Callable[[Path], Measures], directory: Path) -> Measures:
        before, began = _children_cpu_s(), time.monotonic()
        measures = run(directory)
        wall_s = time.monotonic() - began
        return {"wall_s": wall_s, "cpu_s": _children_cpu_s() - before, **measures}

    def _scaled(self, measures: Measures) -> Measures:
        """With the time over curl's of the same repeat, or of the one before where that comes later."""
        return {**measures, "to_curl": measures["wall_s"] / self._curl_s}

    def _first(self, directory: Path) -> Measures:
        measures = self._timed(self._curl, directory)
        self._curl_s = measures["wall_s"]
        return measures

    def _curl(self, directory: Path) -> Measures:
        out = _empty(directory / "curl")
        config = "".join(
            f'url = "{self._url(number)}"\noutput = "{out / _name(number)}"\n' for number in range(FILES)
        )
        words = ["curl", "-s", "-S", "-L", "--fail", "-K", "-"]
        subprocess.run(words, input=config, text=True, check=True, timeout=LONGEST_S)
        names = [str(out / _name(number)) for number in range(FILES)]
        subprocess.run(["sha256sum", *names], check=True, stdout=subprocess.DEVNULL, timeout=LONGEST_S)
        return {}

    def _client(self, directory: Path) -> Measures:
        out = _empty(directory / "client")
        environ = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(directory / "home")}
        words = [sys.executable, "-c", CLIENT, REPO, self._hub.endpoint, str(out)]
        subprocess.run(words, env=environ, check=True, capture_output=True, timeout=LONGEST_S)
        return {}

    def _stoker(self, directory: Path) -> Measures:
        task = _task(_empty(directory / "landing"), self._hub.endpoint)
        worker = Worker.start(
            "stoker.corpus.fetch_worker", task, name="fetch", deadline_s=None, keep_open=True
        )
        for number in range(FILES):
            path = _name(number)
            wish = {"path": path, "url": self._url(number), "size": FILE_BYTES, "sha256": self._sums[path]}
            worker.send({"fetch": wish})
        worker.close_input()
        done, rss = [], 0
        while (ended := worker.poll()) is None:
            rss = _peak_rss(worker.pid) or rss
            select.select([worker.fileno()], [], [], 1.0)
            done += [each for each in worker.messages() if each["kind"] == "done"]
        done += [each for each in worker.messages() if each["kind"] == "done"]
        if ended.kind != "finished" or len(done) != FILES:
            raise RuntimeError(f"the fetch worker {ended.reason()} with {len(done)} files")
        return {"rss_bytes": float(rss)}

    def _url(self, number: int) -> str:
        return HubRepo(REPO, endpoint=self._hub.endpoint).file_url(self._commit, _name(number))


def _peak_rss(pid: int) -> int:
    # Of the worker's own image: what its exit tells counts from before its exec.
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10 if "VmHWM:" in status else 0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _task(root: Path, endpoint: str) -> dict[str, Any]:
    return {
        "root": str(root),
        "dataset": "bench",
        "expected": False,
        "files_at_once": 4,
        "bandwidth": None,
        "min_rate": 20 << 10,
        "window_s": 60.0,
        "connect_s": 20.0,
        "read_s": 60.0,
        "head_s": 120.0,
        "commit_s": 2.0,
        "commit_bytes": 64 << 20,
        "backoff": [1.0, 60.0],
        "attempts": 5,
        "floor": 0,
        "keep_files": 3,
        "keep_bytes": 1 << 30,
        "hub": {"repo": REPO, "repo_type": "dataset", "endpoint": endpoint},
        "token_file": None,
    }


def _name(number: int) -> str:
    return f"part-{number:02}.parquet"


def _empty(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place
