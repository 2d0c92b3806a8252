"""`stoker top`: what its pages say of files, whatever is in them, and when it reads them again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.top import pages
from stoker.cli.top.pages import BARS, Reading, last_events, rows_of, spark
from stoker.config.load import load_pipeline
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise.run.launch_ends import LaunchEnd, note_end
from support.config_files import write_pipeline

LOW, HIGH = BARS[0], BARS[-1]
BEGIN = "2026-11-20T12:00:00Z"


@pytest.fixture
def run(reading: Reading) -> RunLayout:
    return reading.pipeline.layout.run("main")


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Of a pipeline that has directories and has never run."""
    monkeypatch.setattr(pages, "REST", 0)
    pipeline = load_pipeline(write_pipeline(tmp_path), {})
    pipeline.layout.create()
    pipeline.layout.run("main").create()
    pipeline.layout.run("main").metrics.parent.mkdir(exist_ok=True)
    return Reading(pipeline)


def page(reading: Reading, name: str) -> dict[str, str]:
    """The texts of a page by title; of a title that comes again, the first."""
    rows: dict[str, str] = {}
    for title, text, _ in rows_of(name, reading, 40):
        rows.setdefault(title.strip(), text)
    return rows


def running(reading: Reading, **body: Any) -> None:
    """Have the train supervisor run, with this status."""
    about = {"running": True, "state": "running", "since": BEGIN, "pid": 1, "metrics": None, "silent_s": 0.0}
    daemons = {**reading.facts.daemons, "train_supervisor": {**about, "body": body}}
    reading.facts = replace(reading.facts, daemons=daemons)
    reading.renew = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("values", "width", "curve"),
    [
        ([1.0], 9, LOW),
        ([2.0, 2.0, 2.0], 9, LOW * 3),
        ([0, 7], 9, LOW + HIGH),
        (range(8), 9, BARS),
        ([0, 0, 7, 7, 0, 0], 3, LOW + HIGH + LOW),
        ([0.0, 1e300], 9, LOW + HIGH),
        (range(1000), 8, BARS),
    ],
)
def test_a_curve_has_a_bar_for_each_share_of_the_values(
    values: Sequence[float], width: int, curve: str
) -> None:
    assert spark(values, width) == curve


def test_each_page_of_a_pipeline_that_never_ran_says_what_there_is_not(reading: Reading) -> None:
    assert page(reading, "Overview")["verdict"].startswith("nothing runs; start it with ")
    assert page(reading, "Overview")["train_supervisor"] == "never started"
    for name, title in (("Data", "data"), ("Training", "training")):
        assert page(reading, name)[title].startswith("no status tells of it: none was left, or a reboot")
    assert page(reading, "Launches") == {"launches": "none has ended, and none is in the books"}
    assert page(reading, "Events") == {"events": "none is kept"}
    assert page(reading, "Memory") == {"memory": "no daemon runs"}


def test_a_page_of_another_version_s_status_says_so_and_what_to_do(reading: Reading) -> None:
    running(reading, run="main", gpus=7)
    for name in ("Training", "Memory"):
        text = page(reading, name)["cannot be shown"]
        assert "a daemon of another version wrote it" in text
        assert f"`stoker reload {reading.pipeline.file}`" in text
    assert page(reading, "Launches")["launches"]


def test_memory_is_told_by_role_and_card(reading: Reading) -> None:
    role = {"count": 2, "rss_bytes": 3 << 30, "pss_bytes": 2 << 30, "swap_bytes": 1 << 20}
    idle = dict.fromkeys(role, 0)
    gpus = {
        "expected": 2,
        "present": {"0": True, "1": False},
        "memory_used_bytes": {"0": 1 << 30},
        "memory_total_bytes": {"0": 80 << 30},
        "utilization_ratio": {"0": 0.97},
        "temperature_celsius": {"0": None},
        "power_watts": {"0": 650.4},
    }
    running(reading, headroom_bytes=5 << 30, processes={"trainer": role, "sealer": idle}, gpus=gpus)
    shown = page(reading, "Memory")
    assert shown["train_supervisor"] == "5.0 GiB to spare"
    assert shown["trainer"] == "3.0 GiB RSS, 2.0 GiB PSS, 1.0 MiB SWAP, 2 processes"
    assert "sealer" not in shown
    assert shown["gpu 0"] == "1.0 GiB used, 80.0 GiB in all, 97% busy, 650 W"
    assert shown["gpu 1"] == "is gone from the bus"


def test_curves_are_of_the_steps_that_count(reading: Reading, run: RunLayout) -> None:
    rows = [
        {"step": 1, "timeline": 0, "loss": 4.0, "tokens_per_s": 100},
        {"step": 2, "timeline": 0, "loss": None},
        {"step": 3, "timeline": 0, "loss": 2.0, "tokens_per_s": 300},
        {"step": 3, "timeline": 0, "val_loss": 9.0},
        {"step": 4, "timeline": 1, "loss": 99.0},  # of no timeline of this run
    ]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"torn')
    curves = list(rows_of("Training", reading, 40))[:4]
    assert [text for _, text, _ in curves] == [
        HIGH + LOW,
        "2.0000 to 4.0000, steps 1 to 3",
        LOW + HIGH,
        "100 to 300 tokens/s, steps 1 to 3",
    ]
    run.metrics.unlink()
    run.metrics.mkdir()
    assert page(reading, "Training")["cannot be read"].startswith(f"cannot read {run.metrics}: ")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "not known: the supervisor ended before the launch did; steps 5-9"),
        (
            {"exit_class": "host_memory", "detail": "killed", "seconds": {"steps": 60.0}},
            "host memory: killed; steps 5-9, 1 min, 100 % good",
        ),
        ({"exit_class": "stopped_as_asked", "detail": ""}, "stopped as asked; steps 5-9"),
    ],
)
def test_a_launch_is_a_sentence(reading: Reading, run: RunLayout, changes: dict[str, Any], text: str) -> None:
    note_end(run.runs, LaunchEnd("l1", 0, 5, BEGIN, 9, **changes))
    assert page(reading, "Launches") == {"2026-11-20 12:00": text}


def test_the_newest_launch_is_first_and_a_line_that_is_none_is_told(reading: Reading, run: RunLayout) -> None:
    log = ChainedLog(run.runs)
    log.append({"v": 1, "other": 1})
    log.append(LaunchEnd("l1", 0, 0, BEGIN).body())
    log.close()
    body = {**LaunchEnd("l2", 0, 1_000, "2026-11-21T12:00:00Z", 2_000).body()}
    write_record(run.goodput, {"v": 1, "launch": body})
    found = list(page(reading, "Launches").items())
    assert found[0][1].startswith("runs.jsonl: entry 0 is no launch: ")
    assert found[1][0] == "2026-11-21 12:00" and found[1][1].endswith("; steps 1,000-2,000")
    assert len(found) == 3


def test_events_are_read_from_the_ends_of_logs_whatever_is_in_them(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(event: str, **fields: Any) -> str:
        return json.dumps({"prev": "", "event": event, "time": BEGIN, **fields})

    log = reading.pipeline.layout.events("stage_shard")
    older = log.with_name(f"{log.name}.1")
    older.write_text(f"{line('older')}\n")
    full = line("disk_full", level="error", path="\x1b[2J")
    log.write_text(f'{full}\n[]\n\0\0{full}\n{line("worker_recycled")}\n{{"event": "torn"')
    other = reading.pipeline.layout.events("train_supervisor")
    other.mkdir()
    shown = rows_of("Events", reading, 40)
    assert [title for title, *_ in shown] == ["cannot be read", "11-20 12:00 shard", "11-20 12:00 shard"]
    assert shown[0][1].startswith(f"cannot read {other}: ")
    assert "\\x1b[2J" in shown[1][1] and shown[2][1] == "older"
    monkeypatch.setattr(pages, "TAIL_BYTES", len(line("last")) + 5)
    log.write_text(f"{full}\n{line('last')}\n")
    assert [event["event"] for event in last_events(reading.pipeline)[0]] == ["last"]


def test_what_is_slow_to_read_is_read_again_once_it_has_taken_little(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "REST", 300)
    clock = {"now": time.monotonic(), "cpu": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(time, "thread_time", lambda: clock["cpu"])
    read = list[float]()

    def slow(_: Any) -> int:
        read.append(clock["now"])
        clock["cpu"] += 0.1
        return len(read)

    found = []
    for later_s in (0, 29, 2):
        clock["now"] += later_s
        found.append(reading.kept(slow))
    assert found == [1, 1, 2]


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_without_a_terminal_it_says_what_it_needs(
    term: str, reading: Reading, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("os.isatty", lambda number: term == "dumb" or number != 1)
    file = str(reading.pipeline.file)
    assert exit_code(["top", file]) == 64
    assert capsys.readouterr().err == (
        "stoker: `stoker top` needs a terminal as input, output and standard error; "
        f"`stoker status {file}` prints the same once\n"
    )
