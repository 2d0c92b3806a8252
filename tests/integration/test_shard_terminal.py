"""`stoker-stage-shard FILE --once` by hand: its progress on a terminal, files that join, the end."""

from __future__ import annotations

import re
from pathlib import Path

from stoker.corpus.records.sources import PUBLISHED
from support.parquet import write_fineweb
from support.pipelines import make_pipeline
from support.processes import daemon_command, start_daemon
from support.terminal import run_on_terminal
from support.waiting import wait_until

LOGGED = re.compile(r"\d\d:\d\d:\d\d \w|         \S")


def test_a_terminal_shows_progress_below_whole_log_lines_and_is_left_clean(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    for number in range(4):
        write_fineweb(data.source / f"{number}.parquet", 150, seed=number)
    (data.source / "bad.parquet").write_text("not parquet")
    data.receive()
    code, screen = run_on_terminal(
        daemon_command("stage_shard", data.file, "--once"), columns=60, environ={"NO_COLOR": "1"}
    )
    assert code == 0
    assert screen.last == "", "nothing is left of the line"
    assert all(LOGGED.match(line) for line in screen.lines), screen.lines
    assert screen.lines[-1].endswith(" the daemon stopped in order")
    assert not screen.styled
    assert max(map(len, screen.footers)) < 60
    counted = [line for line in screen.footers if line != "looking for files"]
    told = [re.match(r"(\d+)/(\d+) files", line) for line in counted]
    done = [int(found.group(1)) for found in told if found is not None]
    assert len(done) == len(counted), screen.footers
    assert "0/0 files" not in screen.footers
    assert done == sorted(done)
    assert any(re.match(r"\d/5 files  .* %.*  build \d", line) for line in screen.footers), screen.footers


def test_nothing_of_it_goes_into_a_file_or_a_dumb_terminal(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    write_fineweb(data.source / "0.parquet", 150)
    data.receive()
    code, screen = run_on_terminal(
        daemon_command("stage_shard", data.file, "--once"), environ={"TERM": "dumb"}
    )
    assert (code, screen.footers) == (0, [])
    said = data.once("stage_shard")
    assert (said.returncode, "\r" in said.stderr, "\x1b" in said.stderr) == (0, False, False)


def test_later_files_join_by_themselves_and_a_drain_takes_what_is_there(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    write_fineweb(data.source / "a.parquet", 150, seed=0)
    daemons = [data.start(name) for name in ("download_watchdog", "stage_shard")]
    try:
        wait_until(lambda: data.states().get("a.parquet") in PUBLISHED, what="the first set")
        write_fineweb(data.source / "c.parquet", 150, seed=1)
        write_fineweb(data.source / "b.parquet", 150, seed=2)
        wait_until(
            lambda: {data.states().get(name) for name in ("b.parquet", "c.parquet")} <= PUBLISHED,
            what="the later ones",
        )
        wait_until(lambda: data.pin().complete, what="a complete dataset")
        assert data.pin().listing == ("a.parquet", "b.parquet", "c.parquet")
        body = wait_until(
            lambda: data.status() if data.status()["files_done"] == 3 else {}, what="the status"
        )
        assert (body["files_of"], body["bytes_done"]) == (3, body["bytes_of"])
        assert body["eta_s"] is None
    finally:
        assert [daemon.stop() for daemon in daemons] == [0, 0]
    ended = data.once("stage_shard")
    assert (ended.returncode, "drained" in ended.stderr) == (0, True)


def test_a_stop_before_all_is_built_is_no_success(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    for number in range(3):
        write_fineweb(data.source / f"{number}.parquet", 150, seed=number)
    data.receive()
    daemon = start_daemon(daemon_command("stage_shard", data.file, "--once"), tmp_path / "once.err")
    wait_until(data.states, what="the first records")
    assert daemon.stop() == 75
    assert "start it again" in daemon.said()
    assert data.once("stage_shard").returncode == 0
    assert set(data.states().values()) <= PUBLISHED
