"""kill -9 on a download's way, a few of those of `scripts/chaos --scenario download`; and on a release's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import strace
from chaos.driver import run_scenario
from chaos.scenarios.download import TinyDownloadScenario
from stoker.corpus.records.receipts import Demand, Unneeded, write_demand
from stoker.store.layout import DOWNLOAD_WATCHDOG
from support.loopback_hub import LoopbackHub, noise
from support.pipelines import DataPipeline
from support.processes import has_ended
from support.siege import Siege, kill
from support.waiting import wait_until
from support.watchdogs import from_hub, landed, pretend_built, put, receipt_states

needs_strace = pytest.mark.skipif(not strace.is_here(), reason="needs strace (apt install strace)")
REPO, SIZE = "org/leaves", 50_000


def test_every_byte_is_true_through_a_bad_line_and_kills_of_daemon_and_workers(tmp_path: Path) -> None:
    report = run_scenario(TinyDownloadScenario(), kills=3, seed=3, directory=tmp_path)
    print(report.table())
    assert report.kills + report.skipped >= 2


@pytest.fixture(name="siege")
def siege_fixture(tmp_path: Path) -> Iterator[Siege]:
    """A watchdog that has brought three files, two of which may leave."""
    with LoopbackHub(tmp_path / "hub") as hub:
        put(hub, REPO, {f"{number}.parquet": noise(SIZE, number) for number in range(3)})
        data = from_hub(tmp_path, hub, REPO)
        environ = {"HF_TOKEN": "", "NO_PROXY": "*", "CREDENTIALS_DIRECTORY": ""}
        siege = Siege(data, (DOWNLOAD_WATCHDOG,), environ=environ, never_exits=True)
        try:
            siege.tend()
            wait_until(lambda: list(receipt_states(data).values()) == ["verified"] * 3, what="the files")
            for number in range(2):
                pretend_built(data, f"{number}.parquet")
            yield siege
            assert hub.served(REPO) == 3 * SIZE, "what left was fetched again"
        finally:
            siege.end()


def ask_release(data: DataPipeline, *paths: str) -> None:
    receipts = data.receipts()
    unneeded = {path: Unneeded(receipts[path].sha256, path) for path in paths}
    write_demand(data.pipeline.layout, receipts[paths[0]].dataset, Demand(unneeded, {}))


def trace(pid: int, log: Path, injected: str) -> subprocess.Popen[bytes]:
    """Have strace do this to each unlink of a process; returns when it holds all its threads."""
    command = ["strace", "-f", "-q", "-y", "-o", str(log), "-e", "signal=none", "-p", str(pid)]
    calls = "?unlink,?unlinkat"
    quiet = subprocess.DEVNULL
    tracer = subprocess.Popen(
        [*command, "-e", f"trace={calls}", "-e", f"inject={calls}:{injected}"], stdout=quiet, stderr=quiet
    )
    tasks = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all("TracerPid:\t0\n" not in (each / "status").read_text() for each in tasks.iterdir()),
        what="the tracer",
    )
    return tracer


def released(data: DataPipeline, count: int) -> bool:
    return list(receipt_states(data).values()) == ["released"] * count + ["verified"] * (3 - count)


@pytest.mark.strace
@needs_strace
def test_a_release_whose_daemon_and_worker_are_killed_before_or_inside_the_unlink_is_finished_by_the_next(
    siege: Siege, tmp_path: Path
) -> None:
    data = siege.data
    worker, _ = siege.victim("fetch") or (0, "")
    tracer = trace(worker, tmp_path / "before", "delay_enter=600s")
    try:
        ask_release(data, "0.parquet")
        wait_until(lambda: receipt_states(data)["0.parquet"] == "releasing", what="the durable intent")
        siege.kill(DOWNLOAD_WATCHDOG)
        kill(worker)
    finally:
        tracer.kill()  # it would hold what is left of the worker for as long as the delay
        tracer.wait()
    wait_until(lambda: has_ended(worker), what="the worker's end")
    assert receipt_states(data)["0.parquet"] == "releasing"
    assert landed(data).keys() == {"0.parquet", "1.parquet", "2.parquet"}
    siege.tend()
    wait_until(lambda: released(data, 1), what="the release")
    assert landed(data).keys() == {"1.parquet", "2.parquet"}

    worker, _ = wait_until(lambda: siege.victim("fetch"), what="the worker that releases")
    tracer = trace(worker, tmp_path / "inside", "signal=KILL")
    try:
        ask_release(data, "0.parquet", "1.parquet")
        wait_until(lambda: released(data, 2), what="the other release")
    finally:
        strace.let_go(tracer)
    assert strace.where_killed(tmp_path / "inside") is not None
    assert str(data.pipeline.source_root / "1.parquet") in (tmp_path / "inside").read_text()
    assert landed(data) == {"2.parquet": noise(SIZE, 2)}
    assert [each["reason"] for each in data.events(DOWNLOAD_WATCHDOG, "fetcher_died")] == [
        "killed by SIGKILL"
    ]
    assert siege.restarts[DOWNLOAD_WATCHDOG] == 2
    assert set(siege.stop().values()) == {0}
