"""`stoker status` and `stoker events` over snapshots and event logs that daemons left or are writing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from stoker.cli.main import exit_code
from stoker.cli.pipeline.events import _moment
from stoker.cli.pipeline.status import gpus_line, report_lines, terminal_lines, watched_line
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts, Verdict
from stoker.store.errors import UsageError
from stoker.store.layout import RuntimeLayout
from stoker.store.log import ChainedLog
from stoker.supervise.outlook import gather
from support.config_files import write_pipeline
from support.waiting import LONG_S, wait_until

SCHEMA = Path(__file__).parents[2] / "docs" / "status.schema.json"
SHARD = {
    "sources": {"proven": 9, "quarantined": 1, "staged": 0},
    "complete": True,
    "slice": {"files": 10, "limit": {"tokens": 700_000}},
    "documents": {"train": 985, "val": 5},
    "tokens": {"train": 746_200, "val": 3800},
    "dropped": {"min_chars": 8},
    "tokens_per_second": 1_200_000,
    "text": "9 files built",
    "sets": {"hot": 4, "warm": 9, "evicted": 5, "bringing_back": ["a.parquet"], "wanted_cold": 2},
    "disks": {
        "hot": {"free_bytes": 2**20, "total_bytes": 2**26, "claimed_bytes": 2**19, "trouble": ""},
        "warm": {"trouble": "is away"},
    },
    "trouble": "waiting for the warm directory /mnt/nas to answer",
}
DOWNLOAD = {
    "looked": True,
    "files": {"waiting": 7, "fetching": 2, "verified": 3},
    "verified_bytes": 3 << 20,
    "complete": False,
    "bytes_done": 4 << 20,
    "bytes_of": 16 << 20,
    "rate_bytes_per_second": 2_000_000,
    "eta_s": 90,
    "transfers": [
        {"path": "a.parquet", "bytes": 1 << 20, "size": 2 << 20, "bytes_per_second": 1_500_000},
        {"path": "b.parquet", "bytes": 0, "size": None, "bytes_per_second": 0},
    ],
    "waits": "",
    "paused": "the disk is full",
    "trouble": "",
}
RUN = {
    "run": "main",
    "run_state": "running",
    "finished": None,
    "step": 500,
    "steps": 1000,
    "loss": 3.25,
    "val_loss": None,
    "tokens_per_s": 52_000,
    "mfu": 0.413,
    "eta_s": 185.0,
    "checkpoint": {"name": "step-000000400", "step": 400, "proven": True},
    "mirror": {"step": 300, "waiting": 1, "copying": 400, "trouble": "warm is full"},
    "plan_windows": 20_000,
    "plan_entries": 2,
    "plan_windows_ahead": 12_000,
    "launches": 3,
    "figures": {"audit": {"findings": 2, "at": 1_795_435_200.0}},
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = load_pipeline(write_pipeline(tmp_path), {})
    pipeline.layout.create()
    return pipeline


@pytest.fixture
def running(pipeline: Pipeline, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline whose shard loop and supervisor hold their locks and have written a snapshot."""
    runtime = RuntimeLayout.at(tmp_path / "runtime")
    runtime.create()
    locks = []
    for daemon, body in (("stage_shard", SHARD), ("train_supervisor", RUN)):
        extra = {"runtime": str(runtime.root), "metrics": "127.0.0.1:9812"}
        locks.append(Lock.acquire(pipeline.layout.lock(daemon), purpose=daemon, extra=extra))
        runtime.status(daemon).write_text(json.dumps(dict(body)))
    yield pipeline
    for lock in locks:
        lock.release()


def log_events(pipeline: Pipeline, daemon: str, *events: dict[str, Any]) -> None:
    """Append events as a daemon does."""
    log = ChainedLog(pipeline.layout.events(daemon))
    for event in events:
        log.append({"v": 1, "level": "info", "pipeline": pipeline.name, **event}, durable=False)
    log.close()


def test_status_of_a_pipeline_that_never_ran(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["status", str(pipeline.file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "verdict              nothing runs; start it with `systemctl start stoker@mine.target`, or "
        f"`stoker run {pipeline.file}`",
        "pipeline mine",
        "  train_supervisor   never started",
        "  stage_shard        never started",
        "  download_watchdog  never started",
        "time left",
        "  run                not known: only 0 s of work were measured in the last day",
    ]


def test_status_shows_daemons_data_and_run(running: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["status", str(running.file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("verdict              2 things need a hand; the download watchdog does not run\n")
    assert "\nneeds a hand         the warm disk: is away. Mount it; all continues by itself.\n" in text
    assert "  stage_shard        running: 9 files built\n" in text
    assert re.search(f" {{21}}pid {os.getpid()}, since .*, metrics http://127.0.0.1:9812/metrics\n", text)
    for line in (
        "  sources            9 proven, 1 quarantined; complete",
        "  slice              10 files, by dataset.limit 700,000 tokens",
        "  tokens             746.2 K to train on, 3,800 held out",
        "  rows dropped       8 min_chars",
        "  building           1.2 M tokens/s",
        "  shard sets         4 on hot, 9 copied to warm, 5 only there, 2 waited for, 1 coming back",
        "  hot disk           1.0 MiB free of 64.0 MiB, 512.0 KiB claimed",
        "  trouble            waiting for the warm directory /mnt/nas to answer",
        "  run                main: running",
        "  step               500 of 1,000 (50.0 %)",
        "  loss               training 3.2500",
        "  speed              52,000 tokens/s, 41.3 % MFU",
        "  checkpoint         step-000000400",
        "  mirror             step 300; copying step 400; 1 waiting; trouble: warm is full",
        "  plan               20,000 windows in 2 entries, 12,000 ahead",
        "  audit              2 findings, which `stoker audit` names, at 2026-11-23T12:00:00Z",
        "  launches           3",
    ):
        assert line in text.splitlines(), text
    assert text.index("\nrun\n") < text.index("\ndata\n"), "what matters most comes first"


def test_a_terminal_gets_the_status_folded_and_coloured_by_state() -> None:
    sums = f"the pin is {'ab12' * 16}"
    daemons = {
        **nothing(),
        "stage_shard": told_by({**SHARD, "uptime_s": 7500.0}),
        "train_supervisor": told_by({**RUN, "run_state": "failed", "reason": sums}, running=False),
    }
    lines = list(terminal_lines(Facts("mine", "FILE", daemons), 50, colour=False))
    assert max(len(part) for line in lines for part in line.splitlines()) <= 50
    assert lines[2] == "  stage_shard        running for 2 h 5 min: 9\n" + " " * 21 + "files built"
    assert any(sums[:11] + "ab12ab12ab12)" in line.replace("\n" + " " * 21, " ") for line in lines)
    coloured = list(terminal_lines(Facts("mine", "FILE", daemons), 50, colour=True))
    assert coloured[0] == "\x1b[1mpipeline mine\x1b[0m"
    codes = [line.split("m")[0] for line in coloured[1:3] + coloured[4:5]]
    assert codes == ["\x1b[31", "\x1b[33", "\x1b[2"], "failed, waiting for the disk, never started"


def test_a_terminal_of_twenty_columns_loses_no_word_of_the_verdict() -> None:
    judged = Verdict("waits", "training waits: 2 shard sets, about 14 min")
    lines = list(terminal_lines(Facts("mine", "FILE", nothing()), 20, judged, colour=False))
    assert " ".join(lines[0].split()) == "verdict training waits: 2 shard sets, about 14 min"
    assert max(map(len, lines[0].splitlines())) < 35, "a narrow column beside its title"


def test_status_as_json_is_the_daemons_own_snapshots(
    running: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["status", str(running.file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    validate(told, json.loads(SCHEMA.read_text()))
    assert (told["v"], told["pipeline"]) == (1, "mine")
    assert told["verdict"]["grade"] == "needs a hand" and told["hands"][0]["event"] == "warm_unavailable"
    assert told["times_left"]["run"]["least_s"] is None
    assert told["daemons"]["train_supervisor"]["running"] is True
    assert told["daemons"]["train_supervisor"]["body"] == RUN
    assert told["daemons"]["download_watchdog"]["state"] == "never started"


def test_a_daemon_that_runs_is_described_with_what_it_does(
    running: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["describe", str(running.file), "stage_shard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["next"] == "9 files built"


def free_bytes_were(pipeline: Pipeline, minutes: int, free: Callable[[int], int]) -> None:
    """Write the samples of the stage-shard loop: the free bytes of hot at each of the last minutes."""
    samples = pipeline.layout.samples("stage_shard")
    samples.parent.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC) - timedelta(minutes=minutes)
    rows = [
        f"{(began + timedelta(minutes=minute)).isoformat()},{60 * minute},{free(minute)}"
        for minute in range(minutes)
    ]
    samples.write_text("\n".join(["time,elapsed_s,hot_free_bytes", *rows, ""]))


@pytest.mark.parametrize(
    ("minutes", "free", "runs", "is_told"),
    [
        (120, lambda minute: (200 - minute) << 12, True, True),
        (120, lambda minute: minute % 2 << 19, True, False),  # it is freed again
        (40, lambda minute: (200 - minute) << 12, True, False),  # too short to tell
        (120, lambda minute: (200 - minute) << 12, False, False),  # nothing fills it any more
    ],
)
def test_when_a_disk_is_full_is_told_of_one_that_fills(
    minutes: int, free: Callable[[int], int], runs: bool, is_told: bool, running: Pipeline
) -> None:
    free_bytes_were(running, minutes, free)
    daemons = read_status(running.layout)
    daemons["stage_shard"] = {**daemons["stage_shard"], "running": runs}
    assert ("hot disk" in gather(running, daemons).times) is is_told


def test_what_cannot_be_read_leaves_the_rest_of_the_status(
    running: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    running.layout.run("main").metrics.mkdir(parents=True)
    assert exit_code(["status", str(running.file)]) == 0
    shown = capsys.readouterr().out
    assert re.search("  run +not known: .*metrics.jsonl.*: Is a directory", shown), shown
    assert "  hot disk           1.0 MiB free" in shown


def test_a_check_is_failed_by_a_daemon_that_hangs(running: Pipeline) -> None:
    check = ["status", str(running.file), "--check"]
    assert exit_code(check) == 0, "the download watchdog was never started"
    with Lock.acquire(running.layout.lock("download_watchdog"), purpose="download_watchdog"):
        assert exit_code(check) == 0
        last = (datetime.now(UTC) - timedelta(seconds=200)).isoformat()
        status = RuntimeLayout.at(running.file.parent / "runtime").status("stage_shard")
        status.write_text(json.dumps({**SHARD, "time": last}))
        assert exit_code(check) == 1


def test_a_stopped_daemon_has_no_speed() -> None:
    stopped = {"running": False, "state": "stopped", "pid": None, "since": "x", "metrics": None, "body": {}}
    daemons = {
        "download_watchdog": stopped,
        "stage_shard": {**stopped, "body": SHARD},
        "train_supervisor": {**stopped, "body": {**RUN, "exit_code": 78}},
    }
    text = "\n".join(report_lines(Facts("mine", "FILE", daemons)))
    assert "tokens/s" not in text
    assert "time left" not in text
    assert "  train_supervisor   stopped, exit code 78" in text
    assert "  stage_shard        stopped; last status: 9 files built" in text
    assert "  run                main: was running when the supervisor ended" in text
    daemons["train_supervisor"]["body"] = {**RUN, "run_state": "finished", "finished": "steps"}
    lines = list(report_lines(Facts("mine", "FILE", daemons)))
    assert "  run                main: finished (all its steps are done)" in lines


def test_events_are_merged_by_time(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    log_events(
        pipeline,
        "stage_shard",
        {"time": "2026-11-20T12:00:02Z", "seq": 1, "event": "source_proven", "key": "0f", "path": "a b"},
    )
    log_events(
        pipeline,
        "train_supervisor",
        {"time": "2026-11-20T12:00:01Z", "seq": 1, "event": "run_begun", "message": "as asked"},
        {"time": "2026-11-20T12:00:03Z", "seq": 2, "event": "hang", "level": "warning", "step": 4},
    )
    assert exit_code(["events", str(pipeline.file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-20T12:00:01Z train_supervisor  run_begun - as asked",
        '2026-11-20T12:00:02Z stage_shard       source_proven path="a b" key=0f',
        "2026-11-20T12:00:03Z train_supervisor  [warning] hang step=4",
    ]
    assert exit_code(["events", str(pipeline.file), "--json", "--since", "2026-11-20T12:00:03Z"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in told] == ["hang"]


def test_since_takes_a_duration_or_a_time() -> None:
    now = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
    assert _moment("90m", now) == "2026-11-20T10:30:00Z"
    assert _moment("2026-11-20T11:00:00+01:00", now) == "2026-11-20T10:00:00Z"
    assert _moment("2026-11-20", now) == "2026-11-20T00:00:00Z"
    with pytest.raises(UsageError, match="neither a duration"):
        _moment("yesterday", now)


def test_follow_shows_each_new_event_once_until_it_is_interrupted(pipeline: Pipeline, tmp_path: Path) -> None:
    log_events(pipeline, "stage_shard", {"time": "2026-11-20T12:00:00Z", "seq": 1, "event": "first"})
    output = tmp_path / "output"
    command = [sys.executable, "-u", "-c", "from stoker.cli.main import main; main()"]
    with output.open("wb") as file:
        follower = subprocess.Popen([*command, "events", str(pipeline.file), "--follow"], stdout=file)
    try:
        wait_until(lambda: b"first" in output.read_bytes(), what="the first event")
        log_events(pipeline, "stage_shard", {"time": "2026-11-20T12:00:01Z", "seq": 2, "event": "second"})
        log_events(
            pipeline, "download_watchdog", {"time": "2026-11-20T12:00:02Z", "seq": 1, "event": "third"}
        )
        wait_until(lambda: b"third" in output.read_bytes(), what="the third event")
        wait_until(lambda: b"second" in output.read_bytes(), what="the second event")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(LONG_S) == 130
    finally:
        follower.kill()
        follower.wait()
    words = [line.split()[2] for line in output.read_text().splitlines()]
    assert sorted(words) == ["first", "second", "third"]


GPUS = {
    "expected": 2,
    "present": {"0": True, "1": False},
    "memory_used_bytes": {"0": 3 << 30, "1": None},
    "memory_total_bytes": {"0": 80 << 30, "1": None},
    "utilization_ratio": {"0": 0.97, "1": None},
    "temperature_celsius": {"0": 71, "1": None},
}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ({}, ""),
        ({"up": None, "expected": None, "present": {}}, ""),
        ({"up": True, **GPUS}, "1 of 2, 3.0 GiB of 80.0 GiB, 97 % busy, 71 °C"),
        ({"up": True, "expected": 1, "present": {"0": True}}, "1 of 1"),
        ({"up": False, **GPUS}, "2, and the driver does not answer"),
    ],
)
def test_the_gpus_take_a_line_where_there_are_any(gpus: dict[str, Any], said: str) -> None:
    assert gpus_line(gpus) == said


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("plateau", {}, "plateau since step 1,001: loss 3.6000 at step 1,003, median 3.0000"),
        ("spike", {"answer": "rollback"}, "spike since step 1,001: loss 3.6000 at step 1,003, median 3.0000; "
         "the run goes back before it"),
        ("spike", {"answer": "why"}, "spike since step 1,001: loss 3.6000 at step 1,003, median 3.0000; "
         "left alone: why"),
        ("slow", {"since": "now", "tokens_per_s": 600, "usual": 1000},
         "slow since now: 600 tokens/s, 1,000 usually"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_loss_or_speed_takes_a_line(kind: str, more: dict[str, Any], said: str) -> None:
    episode = {"first": 1001, "step": 1003, "loss": 3.6, "median": 3.0, **more}
    assert watched_line(kind, episode) == said
    body = {"run": "main", "run_state": "running", "watched": {kind: episode}, "step": None, "trouble": "x"}
    lines = list(report_lines(Facts("p", "FILE", {**nothing(), "train_supervisor": told_by(body)})))
    assert any(line.split() == ["watch", *said.split()] for line in lines), lines
    assert any(line.split() == ["trouble", "x"] for line in lines), "a checkpoint that failed, for one"


def test_a_download_tells_how_far_it_is_in_all_and_file_by_file() -> None:
    lines = "\n".join(report_lines(Facts("p", "FILE", {**nothing(), "download_watchdog": told_by(DOWNLOAD)})))
    assert "fetched            4.0 MiB of 16.0 MiB, 25.0 %; 2.0 MB/s" in lines
    assert "a.parquet: 1.0 MiB of 2.0 MiB, 1.5 MB/s" in lines and "b.parquet: 0 B, 0.0 MB/s" in lines
    assert "paused             the disk is full" in lines
    past = "\n".join(
        report_lines(Facts("p", "FILE", {**nothing(), "download_watchdog": told_by(DOWNLOAD, running=False)}))
    )
    assert "4.0 MiB of 16.0 MiB, 25.0 %" in past
    assert "MB/s" not in past and "a.parquet" not in past and "paused" not in past


@pytest.mark.parametrize(
    ("more", "said"), [({}, "3 verified; 3.0 MiB verified"), ({"polling": 60}, "3 hashed; 3.0 MiB hashed")]
)
def test_what_nothing_vouches_for_is_hashed_and_not_verified(more: dict[str, Any], said: str) -> None:
    lines = "\n".join(
        report_lines(Facts("p", "FILE", {**nothing(), "download_watchdog": told_by({**DOWNLOAD, **more})}))
    )
    assert said in lines


@pytest.mark.parametrize(
    ("steps_from", "said"),
    [("nanoGPT", "read from its output as nanoGPT"), ("nothing", "no step recognised in its output: set ")],
)
def test_a_trainer_whose_output_is_read_has_a_row_that_says_as_what(steps_from: str, said: str) -> None:
    body = {**RUN, "steps_from": steps_from}
    lines = list(report_lines(Facts("p", "FILE", {**nothing(), "train_supervisor": told_by(body)})))
    assert any(line.startswith(f"  steps              {said}") for line in lines), lines


def test_a_run_without_data_shows_its_supervisor_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("name: own\ntrain:\n  command: [python, train.py]\n")
    assert exit_code(["status", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("verdict              nothing runs") and not shown[3:]
    assert shown[1:] == ["pipeline own", "  train_supervisor   never started"]


def nothing() -> dict[str, dict[str, Any]]:
    """Daemons that were never started."""
    about = {"running": False, "state": "never started", "pid": None, "since": None, "metrics": None}
    return {name: {**about, "body": {}} for name in ("download_watchdog", "stage_shard", "train_supervisor")}


def told_by(body: dict[str, Any], *, running: bool = True) -> dict[str, Any]:
    """A daemon and what it said."""
    about = {"state": "running" if running else "stopped", "pid": 1, "since": "now", "metrics": ""}
    return {**about, "running": running, "body": body}


def test_a_daemon_whose_loop_stands_still_is_not_shown_as_if_it_worked() -> None:
    stopped = {**told_by(DOWNLOAD), "silent_s": 185.0}
    lines = "\n".join(report_lines(Facts("p", "FILE", {**nothing(), "download_watchdog": stopped})))
    assert "running" in lines and "silent for 3 min" in lines
