"""`stoker describe` over a pipeline on paper: what each kind of thing tells, and what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline.describe import look
from stoker.cli.pipeline.describe_things import (
    BACK,
    COMMITTED,
    DONE,
    MADE,
    PLANNED,
    THEN,
    rules,
    standing,
    upcoming,
)
from stoker.cli.pipeline.described import Question
from stoker.corpus.quarantine.directory import open_folder
from stoker.corpus.records.receipts import Listing, Receipt, write_listing, write_receipt
from stoker.corpus.records.sources import Books, Source, write_source
from stoker.kit.event_types import register
from stoker.store.layout import DAEMONS
from stoker.store.log import ChainedLog
from stoker.store.record import utc_now, write_record
from stoker.supervise.run.launch_ends import LaunchEnd, note_end
from support.checkpoint_data import seal
from support.pipelines import make_pipeline

A, B = "a" * 64, "b" * 64
KEY, NEAR = "abcdef" + "0" * 58, "abcdef" + "1" * 58
BOOKS = Books(10, 8, 99, 70, 7, 60, 1, 10, (("null", 2),))
FORK = {"v": 1, "timeline": 1, "parent": 0, "from": 20, "skip": [], "reason": "asked"}


class Paper:
    """A pipeline of records alone: two sets, a duplicate, a quarantined file, a run with a rollback."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.pipeline = make_pipeline(home, train__steps=60).pipeline
        self.layout, self.capsys = self.pipeline.layout, capsys
        self.layout.create()
        self.run = self.layout.run("main")
        self.run.create()
        for path, key, sha256 in (("x/one.parquet", KEY, A), ("x/two.parquet", NEAR, B)):
            write_source(
                self.layout, Source("prose", path, 5, sha256, state="released", key=key, books=BOOKS)
            )
        write_source(self.layout, Source("prose", "twin.parquet", 5, A, state="duplicate"))
        write_source(
            self.layout, Source("prose", "bad.parquet", 5, B, state="quarantined", reason="truncated")
        )
        write_listing(self.layout, Listing("prose", (("x/one.parquet", 5), ("new.parquet", 7)), False, ""))
        reason = {"path": "bad.parquet", "sha256": B, "reason": "truncated"}
        self.entry = open_folder(self.layout.quarantine, "parquet", "bad", reason).name
        write_record(self.run.consumed, {"v": 1, "step": 20})
        for number, (launch, timeline, step) in enumerate((("l1", 0, 0), ("l2", 0, 10), ("l3", 1, 20))):
            begun = {"v": 1, "launch": launch, "timeline": timeline, "resume_step": step, "settings": {}}
            self.log(self.run.launches, {**begun, "time": f"2026-11-20T1{number}:00:00Z"})
        self.log(self.run.timelines, FORK)
        end = LaunchEnd("l1", 0, 0, "2026-11-20T10:00:00Z", 15, 10, "2026-11-20T10:30:00Z", "gpu_memory")
        note_end(self.run.runs, end)
        note_end(self.run.runs, LaunchEnd("l2", 0, 10, "2026-11-20T11:00:00Z", 20, 20))
        last = LaunchEnd("l3", 1, 20, "2026-11-20T12:00:00Z", 25)
        write_record(self.run.goodput, {"v": 1, "launch": last.body()})
        rows = [*((0, step) for step in range(1, 31)), *((1, step) for step in range(21, 26))]
        lines = [{"step": step, "timeline": one, "loss": one + step / 100} for one, step in rows]
        self.run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for step in (10, 20):
            seal(self.run.checkpoints, step)
        self.event("stage_shard", "source_proven", path="x/one.parquet", key=KEY[:16])
        self.event("train_supervisor", "trainer_exited", "2026-11-20T10:30:00Z", launch="l1", step=15)
        self.event("train_supervisor", "run_halted", "2026-11-20T13:00:00Z", launch="l3")

    def log(self, path: Path, body: dict[str, Any]) -> None:
        log = ChainedLog(path)
        log.append(body)
        log.close()

    def event(self, daemon: str, word: str, time: str = "", **fields: Any) -> None:
        self.log(self.layout.events(daemon), {"event": word, "time": time or utc_now(), **fields})

    def ask(self, thing: str, *options: str) -> tuple[int, str, str]:
        code = exit_code(["describe", str(self.pipeline.file), thing, *options])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def told(self, thing: str) -> dict[str, Any]:
        code, out, err = self.ask(thing, "--json")
        assert code == 0, err
        body: dict[str, Any] = json.loads(out)
        return body


REFUSED = (
    (
        "abcdef",
        "'abcdef' begins 2 keys: abcdef0000000000 (x/one.parquet), abcdef1111111111 (x/two.parquet);",
    ),
    ("abcd", "`stoker describe --help` says what it can be"),
    ("one.parquet", "did you mean 'x/one.parquet'?"),
    ("stage_shared", "did you mean 'stage_shard'?"),
    ("disc_full", "did you mean 'disk_full'?"),
    ("StokerRunHalt", "did you mean 'StokerRunHalted'?"),
    ("61", "'61' is none of these of data: daemon, event, alert, step"),
    ("9" * 5000, "says what it can be"),
    ("..", "says what it can be"),
    ("", "says what it can be"),
    ("\x1b[2J", "'\\x1b[2J' is none of these of data"),
)


@pytest.fixture
def paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Paper:
    return Paper(tmp_path, capsys)


# A thing, its kind, facts that it has, what comes next, what can be done: a part of each.
TOLD: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    ("x/one.parquet", "source", {"key": KEY, "state": "released"}, DONE, "data where"),
    ("twin.parquet", "source", {"duplicate_of": "x/one.parquet"}, "another source has the same", ""),
    ("new.parquet", "source", {"state": "not taken up"}, "the download watchdog", ""),
    ("bad.parquet", "source", {"reason": "truncated"}, "checked again every 1 d", "quarantine release"),
    (KEY, "shard set", {"path": "x/one.parquet"}, DONE, "data where"),
    (NEAR[:16].upper(), "shard set", {"key": NEAR}, DONE, ""),
    ("5", "step", {"state": COMMITTED, "launch": "l1", "checkpoint_after": 10}, "a proven", "data batch"),
    ("20", "step", {"checkpoint_before": 10, "checkpoint_after": 20}, "a proven", "rollback"),
    ("15", "step", {"launch": "l2", "checkpoint_before": 10, "loss": 0.15}, "a proven", "rollback"),
    ("22", "step", {"state": MADE, "timeline": 1, "launch": "l3", "loss": 1.22}, "made again", "rollback"),
    ("30", "step", {"state": BACK, "given_up_by": "timeline 1, from step 20: asked"}, "without it", ""),
    ("60", "step", {"state": PLANNED, "checkpoint_before": 20}, "the run comes to it", ""),
    (
        "l1",
        "launch",
        {"exit_class": "gpu_memory", "followed_by": "l2"},
        "l2 went on from step 10",
        "recompute",
    ),
    ("l3", "launch", {"is_running": False, "timeline": 1}, "nothing runs", ""),
    ("stage-shard", "daemon", {"state": "never started"}, "nothing runs", "stoker-stage-shard@data.service"),
    (
        "trainer_exited",
        "event",
        {"level": "warning", "alert": "StokerCrashLoop"},
        "",
        "what its last lines name",
    ),
    ("source_proven", "event", {"level": "info"}, "", "nothing"),
    ("StokerWarmAway", "alert", {"rules": rules()["StokerWarmAway"]}, "", "Mount it"),
)


def test_each_thing_tells_its_facts_what_comes_next_and_what_can_be_done(paper: Paper) -> None:
    for thing, kind, facts, then, do in TOLD:
        told = paper.told(thing)
        assert told["kind"] == kind, thing
        assert facts.items() <= told["facts"].items(), (thing, told["facts"])
        assert then in told["next"] and do in " ".join(told["do"]), (thing, told["next"], told["do"])
        assert told["unread"] == [], thing
        lines = paper.ask(thing)[1].splitlines()
        assert lines[0] == f"{kind} {told['name']}" and told["next"] in "\n".join(lines), thing


def test_an_entry_of_the_quarantine_has_its_whole_reason(paper: Paper) -> None:
    told = paper.told(paper.entry)
    assert told["kind"] == "quarantine id" and told["facts"]["reason"] == "truncated"
    assert "checked again" in told["next"] and f"release {paper.pipeline.file} {paper.entry}" in told["do"][0]


@pytest.mark.parametrize(
    ("record", "receipt", "warm", "said"),
    [
        ({}, None, False, "the download watchdog fetches or hashes it"),
        ({}, "given_up", False, "it is taken up when its content arrives, which no fetch has brought"),
        ({"state": "seen"}, "verified", False, "it is staged when its turn comes"),
        ({"state": "staged"}, "verified", False, "its shard set is built when its turn comes"),
        ({"state": "building"}, "verified", False, "its shard set is published, then proven"),
        ({"state": "proven"}, "verified", False, "its parquet leaves hot"),
        ({"state": "proven"}, "verified", True, "its shard set is copied to warm"),
        ({"state": "synced", "on_warm": True}, "verified", True, "its parquet leaves hot"),
        (
            {"state": "released", "evicted": True},
            "released",
            True,
            "its shard set is on warm alone, and comes",
        ),
        ({"state": "released"}, "released", False, DONE),
        ({"state": "quarantined", "reason": "exceeds_disk"}, "verified", False, THEN["quarantined"]),
        (
            {"state": "quarantined", "reason": "truncated"},
            "verified",
            False,
            "it is checked again every 1 d",
        ),
        ({"state": "quarantined", "reason": "download_failed"}, "given_up", False, "it is taken up when its"),
    ],
)
def test_what_becomes_of_a_source_follows_from_its_records(
    tmp_path: Path, record: dict[str, Any], receipt: str | None, warm: bool, said: str
) -> None:
    changes = {"warm": str(tmp_path / "warm"), "shard__release": "after_sync"} if warm else {}
    pipeline = make_pipeline(tmp_path, **changes).pipeline
    source = Source("prose", "p", 1, A, **record)
    received: Any = receipt
    found = Receipt("prose", "p", "/p", 1, A, "", "", received) if receipt else None
    assert upcoming(pipeline, source, found).startswith(said)


@pytest.mark.parametrize(
    ("number", "logged", "proven", "stands"),
    [
        (10, [0], 20, (0, COMMITTED)),
        (21, [1, 0], 20, (1, MADE)),  # made again on the new timeline
        (21, [0], 20, (0, BACK)),
        (25, [], 20, (1, PLANNED)),
        (15, [], 20, (1, COMMITTED)),  # an external trainer that reports few of its steps
    ],
)
def test_a_step_counts_on_the_newest_timeline_whose_history_has_it(
    number: int, logged: list[int], proven: int, stands: tuple[int, str]
) -> None:
    assert standing(number, logged, [(1, None), (0, 20)], proven) == stands


def test_what_is_not_there_is_refused_with_the_nearest_name(paper: Paper) -> None:
    for thing, said in REFUSED:
        code, out, err = paper.ask(thing)
        assert (code, out) == (64, "") and said in err and "\x1b" not in err, (thing, err)


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(paper: Paper) -> None:
    paper.layout.source("prose", "x/one.parquet").write_bytes(b"{}")
    receipt = Receipt("prose", "x/one.parquet", "/there\x1b[2J", 5, A, "", "", "verified")
    write_receipt(paper.layout, receipt)
    events = paper.layout.events("stage_shard")
    events.write_bytes(b"{\n" + events.read_bytes())
    events.with_name("stage_shard.jsonl.1").mkdir()
    told = paper.told("x/one.parquet")
    assert told["facts"]["file"] == "/there\x1b[2J" and "no record" in told["unread"][0]
    assert any("stage_shard.jsonl.1" in each for each in told["unread"])
    out = paper.ask("x/one.parquet")[1]
    assert "not readable" in out and "/there\\x1b[2J" in out

    write_record(paper.layout.source("prose", "bad.parquet"), {"v": 2})
    code, _, err = paper.ask("bad.parquet")
    assert code == 78 and "format version 2" in err  # it is there, and another Stoker's
    paper.run.launches.write_text('{"v": 1, "prev": "x"}\n')
    unread = paper.told("5")["unread"]
    assert "launches.jsonl is damaged" in unread[0] and len(unread) == len(set(unread))
    paper.run.metrics.unlink()
    paper.run.metrics.mkdir()
    code, _, err = paper.ask("40")  # planned, or made: that cannot be told
    assert code == 74 and "metrics.jsonl" in err
    write_record(paper.run.goodput, {"v": 1, "launch": 5})
    code, _, err = paper.ask("l9")
    assert code == 65 and "runs.jsonl: another version of Stoker wrote it" in err


def test_a_history_counts_all_and_shows_the_newest(paper: Paper) -> None:
    for number in range(9):
        paper.event("stage_shard", "build_failed", f"2026-11-20T0{number}:00:00Z", path="new.parquet")
    paper.event("download_watchdog", "source_vanished", path="new.parquet", reason="\x1b[2J")
    paper.event("train_supervisor", "shard_set_restored", key=KEY)
    assert [each["event"] for each in paper.told(KEY[:9])["history"]["events"]] == [
        *("source_proven", "shard_set_restored"),
    ]
    told = paper.told("new.parquet")["history"]
    assert (told["count"], len(told["events"])) == (10, 5)
    assert [each["event"] for each in told["events"][-2:]] == ["build_failed", "source_vanished"]
    out = paper.ask("new.parquet")[1]
    assert "10 events in the logs" in out and "\x1b" not in out


def test_a_launch_has_the_events_that_name_it(paper: Paper) -> None:
    for launch, words in (("l1", ["trainer_exited"]), ("l2", []), ("l3", ["run_halted"])):
        assert [each["event"] for each in paper.told(launch)["history"]["events"]] == words


def test_every_daemon_event_and_alert_can_be_described(paper: Paper) -> None:
    for name in (*DAEMONS, *register(), *rules()):
        told = look(Question(paper.pipeline, name))
        said = f"{told['facts']} {told['next']} {told['do']}"
        assert told["do"] and not any(word in said for word in ("FILE", "NAME", "/etc/stoker", "{path}")), (
            name
        )
