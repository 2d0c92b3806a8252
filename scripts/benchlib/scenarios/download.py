"""Fetching from this machine: curl and sha256sum, the hub's own client, and the download watchdog."""

from __future__ import annotations

import os
import resource
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.runner import Measures, Scenario, Series

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from stoker.config.load import load_pipeline
from stoker.corpus.http.hub import HubRepo
from stoker.corpus.records.receipts import read_receipts
from stoker.kit.process import children_tree
from support.loopback_hub import REPO, LoopbackHub

FILES = 20
FILE_BYTES = int(os.environ.get("STOKER_BENCH_DOWNLOAD_BYTES", str(2 * 10**9))) // FILES
LONGEST_S = 600.0
LOOK_S = 0.05  # between two looks at what processes take; the kernel keeps the peak

LISTERS = ("hub_worker", "urls_worker", "remote_worker")  # the last: of both kinds, in earlier versions
CURL, CLIENT, STOKER = "curl, then sha256sum", "huggingface_hub", "stoker"
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], repo_type="dataset", endpoint=sys.argv[2], local_dir=sys.argv[3])
"""
PIPELINE = """\
name: bench
state: state
hot: hot
dataset: {{name: prose, source: {{kind: hub, repo: {repo}, endpoint: "{endpoint}"}}}}
tokenizer: {{file: tokenizer.json}}
stage: {{free_floor: 1MiB}}
train: {{steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}}
metrics: {{ports: {{download: 0, shard: 0, train: 0}}}}
"""
# What this machine's own settings must not change: proxies, tokens, other endpoints.
ENVIRON = {"NO_PROXY": "*", "HF_TOKEN": "", "CREDENTIALS_DIRECTORY": "", "HF_HUB_DISABLE_TELEMETRY": "1"}


class Download(Scenario):
    """2 GB in 20 files from loopback, whole and checked: the time, the daemon's memory, its worker's."""

    name = "download"
    repeats = 3
    limits: ClassVar = {"to_curl": 1.15, "daemon_rss_bytes": 45e6, "worker_rss_bytes": 120e6}

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
        return {CURL: self._first, CLIENT: self._second, STOKER: self._third}

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        """Stoker checks what it fetched and makes it durable; it is to be as fast as who does neither."""
        ours, theirs = (series[name]["rate_bytes_per_s"].median for name in (STOKER, CLIENT))
        if ours < theirs:
            yield f"{STOKER}: {ours / 1e6:.0f} MB/s, and {CLIENT} has {theirs / 1e6:.0f} MB/s"

    def _timed(self, run: Callable[[Path], Measures], out: Path) -> Measures:
        """Run it into an empty folder, on a disk that has nothing else to write."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        os.sync()
        before, began = _children_cpu_s(), time.monotonic()
        measures = run(out)
        wall_s = time.monotonic() - began
        cpu_s = _children_cpu_s() - before
        shutil.rmtree(out)
        rate = FILES * FILE_BYTES / wall_s
        return {"wall_s": wall_s, "rate_bytes_per_s": rate, "cpu_s": cpu_s, **measures}

    def _first(self, directory: Path) -> Measures:
        measures = self._timed(self._curl, directory / "curl")
        self._curl_s = measures["wall_s"]
        return measures

    def _second(self, directory: Path) -> Measures:
        return self._timed(self._client, directory / "client")

    def _third(self, directory: Path) -> Measures:
        """With the time over curl's of the same repeat, or of the one before where that comes later."""
        measures = self._timed(self._stoker, directory / "pipeline")
        return {**measures, "to_curl": measures["wall_s"] / self._curl_s}

    def _curl(self, out: Path) -> Measures:
        config = "".join(
            f'url = "{self._url(number)}"\noutput = "{out / _name(number)}"\n' for number in range(FILES)
        )
        words = ["curl", "-s", "-S", "-L", "--fail", "-K", "-"]
        subprocess.run(words, input=config, text=True, check=True, timeout=LONGEST_S)
        names = [str(out / _name(number)) for number in range(FILES)]
        subprocess.run(["sha256sum", *names], check=True, stdout=subprocess.DEVNULL, timeout=LONGEST_S)
        return {}

    def _client(self, out: Path) -> Measures:
        environ = {**os.environ, **ENVIRON, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(out / "home")}
        words = [sys.executable, "-c", SNAPSHOT, REPO, self._hub.endpoint, str(out / "data")]
        subprocess.run(words, env=environ, check=True, capture_output=True, timeout=LONGEST_S)
        return {}

    def _stoker(self, out: Path) -> Measures:
        """The daemon from its launch to its end: it starts, lists, fetches, checks, writes its receipts."""
        (out / "tokenizer.json").write_text("{}\n")  # not read here
        file = out / "bench.yaml"
        file.write_text(PIPELINE.format(repo=REPO, endpoint=self._hub.endpoint))
        log = out / "stderr.log"
        with log.open("wb") as errors:
            daemon = subprocess.Popen(
                [str(Path(sys.executable).parent / "stoker-download-watchdog"), str(file), "--once"],
                env={**os.environ, **ENVIRON},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        peaks = peaks_until_end(daemon)
        receipts = read_receipts(load_pipeline(file).layout, "prose")
        if daemon.returncode or {path: each.sha256 for path, each in receipts.items()} != self._sums:
            raise RuntimeError(f"the watchdog did not bring all; it said:\n{log.read_text()[-2000:]}")
        return {
            "daemon_rss_bytes": peaks["daemon"],
            "worker_rss_bytes": peaks["fetch_worker"],
            "lister_rss_bytes": max(peaks[one] for one in LISTERS),
        }

    def _url(self, number: int) -> str:
        return HubRepo(REPO, endpoint=self._hub.endpoint).file_url(self._commit, _name(number))


def peaks_until_end(daemon: subprocess.Popen[bytes]) -> Counter[str]:
    """Peak resident bytes, as the kernel keeps them, of the daemon and of its workers by module."""
    peaks: Counter[str] = Counter()
    deadline = time.monotonic() + LONGEST_S
    ended = os.pidfd_open(daemon.pid)
    try:
        while not select.select([ended], [], [], LOOK_S)[0]:
            peaks["daemon"] = max(peaks["daemon"], _peak_rss(daemon.pid))
            for child in children_tree(daemon.pid):
                name = _module(child.pid)
                peaks[name] = max(peaks[name], _peak_rss(child.pid))
            if time.monotonic() > deadline:
                raise RuntimeError(f"the watchdog takes longer than {LONGEST_S:.0f} s")
    finally:
        os.close(ended)
        daemon.kill()
        daemon.wait()
    return peaks


def _module(pid: int) -> str:
    """The last word of the module that a worker runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return words[-2].rpartition(".")[2] if len(words) > 2 else ""


def _peak_rss(pid: int) -> int:
    # Of its own image: what a worker's exit tells counts from before its exec.
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) << 10 if "VmHWM:" in status else 0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _name(number: int) -> str:
    return f"part-{number:02}.parquet"
