"""`stoker reload`: the verdict of the three daemons that run, found by their locks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from support.pipelines import DataPipeline, make_pipeline
from support.processes import RunningDaemon
from support.waiting import wait_until


class Site:
    """A pipeline, and what the command said about it."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data, self._capsys = make_pipeline(home), capsys
        self.daemons: dict[str, RunningDaemon] = {}

    def reload(self, *options: str, **changes: Any) -> int:
        """Change the file and have it read."""
        file = make_pipeline(self.data.home, **changes).file
        return exit_code(["reload", str(file), *options])

    def told(self) -> str:
        captured = self._capsys.readouterr()
        return captured.out + captured.err

    def count(self, word: str) -> dict[str, int]:
        """How often each daemon recorded this."""
        return {daemon: len(self.data.events(daemon, word)) for daemon in DAEMONS}


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    site = Site(tmp_path / "site", capsys)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as theirs:  # as from a unit's environment file
            theirs.setenv("STOKER_DOWNLOAD__ATTEMPTS", "7")
            for daemon in DAEMONS:
                site.daemons[daemon] = site.data.start(daemon)
                stack.callback(site.daemons[daemon].stop)
        yield site


def test_a_reload_returns_the_verdict_once_each_daemon_is_ready_again(site: Site) -> None:
    pids = {daemon: running(site.data, daemon) for daemon in DAEMONS}
    assert site.reload("--dry-run", supervise__hang_limit="17m", train__steps=20) == 0
    assert site.told() == "train.steps: next launch\nsupervise.hang_limit: now\n"
    assert site.count("reloaded") == dict.fromkeys(DAEMONS, 0)

    assert site.reload(supervise__hang_limit="17m") == 0
    assert re.fullmatch(
        r"(\S+: reloaded, version \S+, changed: supervise\.hang_limit\n){3}", told := site.told()
    ), told
    assert [site.data.status(daemon)["reloads"] for daemon in DAEMONS] == [1, 1, 1]
    assert {daemon: running(site.data, daemon) for daemon in DAEMONS} == pids
    for daemon in DAEMONS:
        warned = {event["event"] for event in site.data.events(daemon) if event["level"] != "info"}
        assert warned <= {"source_unavailable"}, "the folder is empty, and nothing else is wrong"

    # What counts is what the daemons have now.
    assert site.reload("--dry-run", supervise__hang_limit="17m") == 0
    assert site.told() == "no key changed\n"
    assert site.reload("--dry-run", train__seed=7, stage={"settle": "0s", "free_floor": "900TiB"}) == 78
    refused = dict(line.split(": ", maxsplit=1) for line in site.told().splitlines())
    assert refused.pop("train.seed").startswith("stop and start: a reload cannot change it; put the old")
    assert refused.pop("stage.free_floor").startswith("refused: 900.0 TiB are to stay free")
    assert refused == {"supervise.hang_limit": "now"}
    assert (
        site.reload("--dry-run", "--daemon", "stage-shard", train__seed=7, supervise__hang_limit="17m") == 0
    )
    assert site.told() == "train.seed: now\n"

    # The supervisor, which refuses most, is asked first: then none has changed.
    reloaded = site.count("reloaded")
    assert site.reload(train__seed=7) == 78
    assert re.search(
        r"train-supervisor \(pid \d+\) continues unchanged: .*data\.yaml:\d+: train\.seed: ",
        told := site.told(),
    ), told
    site.data.file.write_text(site.data.file.read_text() + "trian: {}\n")
    assert exit_code(["reload", str(site.data.file)]) == 78
    assert re.search(r"data\.yaml:\d+: trian: ", site.told())
    assert site.count("reloaded") == reloaded
    assert sum(site.count("reload_refused").values()) == 1, "a file that is wrong is shown to no daemon"

    stopped = site.daemons[STAGE_SHARD].process
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        assert site.reload("--daemon", "stage-shard", "--wait", "1", supervise__hang_limit="17m") == 75
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert f"the stage-shard (pid {stopped.pid}) has not answered yet" in site.told()
    wait_until(lambda: site.count("reloaded")[STAGE_SHARD] == 2, what="its answer")
    assert site.data.events(STAGE_SHARD, "reloaded")[1]["changed"] == []
    assert site.count("reloaded") == {**reloaded, STAGE_SHARD: 2}, "it alone"


def running(data: DataPipeline, daemon: str) -> int:
    """The process that a daemon's last words are of."""
    return int(data.status(daemon)["pid"])


def test_without_a_daemon_nothing_is_reloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAINPID", raising=False)
    site = Site(tmp_path / "site", capsys)
    assert site.reload() == 69
    assert f"no daemon of pipeline data runs with the state {site.data.pipeline.state}" in site.told()
    site.data.pipeline.layout.create()
    site.data.pipeline.layout.lock(TRAIN_SUPERVISOR).write_text('{"pid": 1, "purpose": "train_supervisor"}\n')
    assert site.reload("--daemon", "train-supervisor") == 69, "its lock is free"

    monkeypatch.setenv("MAINPID", "77")  # of the unit that runs
    assert site.reload() == 78
    assert re.search(r"data\.yaml:2: state: the daemon that runs \(pid 77\) has another", site.told())
