"""`stoker top`: what its pages say of files, whatever is in them, and when it reads them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.top import reading as top_reading
from stoker.cli.top.pages import BARS, PAGES, rows_of, spark
from stoker.cli.top.reading import Reading, tail
from stoker.config.load import load_pipeline
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise.run.launch_ends import LaunchEnd, note_end
from support.config_files import write_pipeline

LOW, HIGH = BARS[0], BARS[-1]
BEGIN = "2026-11-20T12:00:00Z"


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    """Of a pipeline that has directories and has never run."""
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
    for name, title in (("Data", "data"), ("Training", "run")):
        assert page(reading, name) == {title: PAGES[name][-1](reading, 40).__next__()[1]}
        assert page(reading, name)[title].startswith("no daemon has left a status; after a reboot")
    assert page(reading, "Launches") == {"launches": "none has ended, and none is in the books"}
    assert page(reading, "Events") == {"events": "none is kept"}
    assert set(page(reading, "Memory").values()) == {"never started"}


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
        "info": {"0": {"GPU-1": {"H100": 1}}},
        "memory_used_bytes": {"0": 1 << 30},
        "memory_total_bytes": {"0": 80 << 30},
        "utilization_ratio": {"0": 0.97},
        "temperature_celsius": {"0": None},
        "power_watts": {"0": 650.4},
    }
    running(reading, headroom_bytes=5 << 30, processes={"trainer": role, "sealer": idle}, gpus=gpus)
    shown = page(reading, "Memory")
    assert shown["train_supervisor"] == "5.0 GiB to spare"
    assert shown["trainer"] == "3.0 GiB RSS, 2.0 GiB PSS, 1.0 MiB swapped, 2 processes"
    assert "sealer" not in shown
    assert (shown["gpu 0"], shown["memory"], shown["work"]) == (
        "H100",
        "1.0 GiB of 80.0 GiB",
        "97% busy, 650 W",
    )
    assert shown["gpu 1"] == "is gone from the bus"


def test_curves_are_of_the_steps_that_count(reading: Reading) -> None:
    rows = [
        {"step": 1, "timeline": 0, "loss": 4.0, "tokens_per_s": 100},
        {"step": 2, "timeline": 0, "loss": None},
        {"step": 3, "timeline": 0, "loss": 2.0, "tokens_per_s": 300},
        {"step": 3, "timeline": 0, "val_loss": 9.0},
        {"step": 4, "timeline": 1, "loss": 99.0},  # of no timeline of this run
    ]
    reading.run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"torn')
    curves = list(rows_of("Training", reading, 40))[:4]
    assert [text for _, text, _ in curves] == [
        HIGH + LOW,
        "2.0000 to 4.0000, steps 1 to 3",
        LOW + HIGH,
        "100 to 300 tokens/s, steps 1 to 3",
    ]
    reading.run.metrics.unlink()
    reading.run.metrics.mkdir()
    assert page(reading, "Training")["cannot be read"].startswith(f"cannot read {reading.run.metrics}: ")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "end not known: the supervisor ended before the launch did; steps 5 to 9"),
        (
            {"exit_class": "host_memory", "detail": "killed", "proven_step": 7, "seconds": {"steps": 60.0}},
            "host memory: killed; steps 5 to 9, 1 min, 100 % good; proven to step 7",
        ),
        (
            {"exit_class": "stopped_as_asked", "detail": "", "proven_step": 9},
            "stopped as asked; steps 5 to 9",
        ),
    ],
)
def test_a_launch_is_a_sentence(reading: Reading, changes: dict[str, Any], text: str) -> None:
    note_end(reading.run.runs, LaunchEnd("l1", 0, 5, BEGIN, 9, **changes))
    assert page(reading, "Launches") == {"2026-11-20 12:00": text}


def test_the_launch_that_runs_is_first_and_a_line_that_is_none_is_told(reading: Reading) -> None:
    log = ChainedLog(reading.run.runs)
    log.append({"v": 1, "other": 1})
    log.append(LaunchEnd("l1", 0, 0, BEGIN).body())
    log.close()
    body = {**LaunchEnd("l2", 0, 1_000, "2026-11-21T12:00:00Z", 2_000).body()}
    write_record(reading.run.goodput, {"v": 1, "launch": body})
    running(reading, launch="l2")
    assert list(page(reading, "Launches").items())[:2] == [
        ("damaged", f"{reading.run.runs}: a line is no launch"),
        ("2026-11-21 12:00", "running; steps 1,000 to 2,000"),
    ]


def test_events_are_read_from_the_ends_of_logs_whatever_is_in_them(reading: Reading) -> None:
    log = reading.pipeline.layout.events("stage_shard")
    line = json.dumps({"event": "disk_full", "level": "error", "path": "\x1b[2J", "time": BEGIN})
    log.with_name(f"{log.name}.1").write_text(f'{{"event": "older", "time": "{BEGIN}"}}\n')
    log.write_text(f'{line}\n[]\n\0\0{line}\n{{"event": "worker_recycled"}}\n{{"event": "torn"')
    shown = list(rows_of("Events", reading, 40))
    assert [title for title, *_ in shown] == ["damaged", "11-20 12:00 shard", "11-20 12:00 shard"]
    assert shown[0][1] == f"{log}: 2 of its last lines cannot be read"
    assert "\\x1b[2J" in shown[1][1] and shown[2][1] == "older"
    entries, _ = tail(log, most_bytes=len('{"event": "worker_recycled"}\n{"event": "torn"') + 5)
    assert [entry["event"] for entry in entries] == ["worker_recycled"]
    log.unlink()
    log.mkdir()
    assert page(reading, "Events")["damaged"] == f"{log} cannot be read: Is a directory"


def test_a_file_is_read_again_only_once_it_has_changed(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = reading.pipeline.layout.events("stage_shard")
    log.write_text('{"event": "one"}\n')
    assert reading.events() is reading.events()
    log.write_text('{"event": "one"}\n{"event": "two"}\n')
    assert [event["event"] for event in reading.events()[0]] == ["two", "one"]
    gathered = []
    real = top_reading.gather
    monkeypatch.setattr(top_reading, "gather", lambda *a: gathered.append(1) or real(*a))
    now = top_reading.time.monotonic()
    samples = reading.pipeline.layout.samples("stage_shard")
    for later_s, changes, times in ((59, True, 0), (61, False, 1), (122, False, 1), (962, False, 2)):
        if changes:
            samples.write_text("time\n")
        monkeypatch.setattr(top_reading.time, "monotonic", lambda at=now + later_s: at)
        reading.renew()
        assert len(gathered) == times, later_s


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
