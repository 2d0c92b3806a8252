"""`stoker runs`, `stoker checkpoint list` and `stoker evaluations` over a run on paper."""

from __future__ import annotations

import json
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.format import BODY
from stoker.checkpoints.mirror.layout import Mirrored
from stoker.cli.main import exit_code
from stoker.cli.runs import checkpoint, evaluations, runs
from stoker.plan.timelines import Timeline
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise.run.goodput import Goodput
from stoker.supervise.run.launch_ends import LaunchEnd, note_end
from support.checkpoint_data import seal
from support.pipelines import make_pipeline


class OnPaper:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = make_pipeline(root)
        self.pipeline, self.file = made.pipeline, str(made.pipeline.file)
        self.pipeline.layout.create()
        self.run: RunLayout = self.pipeline.layout.run(self.pipeline.train.run)
        self.run.create()
        self.status: dict[str, Any] = {"running": True, "body": {}}
        for module in (runs, checkpoint):  # a supervisor's status needs a supervisor
            monkeypatch.setattr(module, "read_status", lambda _: {"train_supervisor": self.status})
            monkeypatch.setattr(module, "read_identity", lambda *_: None)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnPaper:
    return OnPaper(tmp_path, monkeypatch)


def ask(paper: OnPaper, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert exit_code([*words, paper.file]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_launch_has_a_line_the_running_one_too(
    paper: OnPaper, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, seconds = "2026-11-20T12:00:00Z", {"steps": 60.0, "redone": 20.0, "load": 20.0}
    long = "20261120T120000Z-110173d4"
    first = LaunchEnd(
        long, 0, 1_000_000, begin, 1_010_000, 1_009_000, begin, "stopped_as_asked", "", {}, seconds
    )
    lost = LaunchEnd("l2", 0, 80, begin, 90, 80, seconds={"redone": 30.0})
    for one in (first, lost):
        note_end(paper.run.runs, one)
    account = Goodput(0.0, totals={**Goodput(0.0).totals, "steps": 60.0, "redone": 50.0, "load": 20.0})
    running = LaunchEnd("l3", 0, 80, begin, 85)
    books = {"v": 1, "account": vars(account), "launch": running.body(), "before": {}}
    write_record(paper.run.goodput, books)
    paper.status["body"] = {"launch": "l3"}
    summary, goodput, _, *rows = ask(paper, capsys, "runs")
    assert summary.endswith(": 3 launched")
    assert goodput == "  goodput 46.2 % of 2 min 10 s; redone 50 s, load 20 s"
    assert [row.split()[0] for row in rows] == [long, "proven", "l2", "proven", "l3"]
    assert " ".join(rows[0].split()[1:]) == "1 min 40 s 1,000,000-1,010,000 60 % stopped_as_asked"
    assert rows[1] == "    proven to step 1,009,000; 20 s in steps made again"
    assert max(map(len, (summary, goodput, *rows))) <= 80
    assert "not known" in rows[2] and rows[4].endswith("running")
    note_end(paper.run.runs, running)  # the supervisor died before it cleared the books
    assert len(ask(paper, capsys, "runs")) == 3 + 5


def test_a_run_without_launches_and_books_has_none_to_show(
    paper: OnPaper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [line.split(": ")[1] for line in ask(paper, capsys, "runs")] == ["0 launched"]
    report = json.loads("\n".join(ask(paper, capsys, "runs", "--json")))
    assert report["launches"] == [] and report["account"] is None


def test_a_checkpoint_is_shown_with_what_keeps_it(paper: OnPaper, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (10, 20, 30):
        seal(paper.run.checkpoints, step)
    (paper.run.checkpoints / "step-000000030" / BODY).write_text("{")
    seal(paper.run.checkpoints, 31, external={"path": "out/last.pt", "step": None})
    row = checkpoint.look(paper.pipeline, "main")["checkpoints"][0]
    assert not row["mirrored"]
    body = json.loads((paper.run.checkpoints / "step-000000010" / BODY).read_text())
    digest = sha256((paper.run.checkpoints / "step-000000010" / BODY).read_bytes()).hexdigest()
    write_record(paper.run.mirror, {"v": 1, "copies": [vars(Mirrored.of(body, digest))]})
    paper.status["body"] = {"run": "main", "proven": ["step-000000010"]}
    losses = {0: 4.0, 10: 3.5, 15: 3.25, 40: 3.0}
    rows = [{"step": step, "timeline": 0, "val_loss": loss} for step, loss in losses.items()]
    paper.run.metrics.parent.mkdir(exist_ok=True)
    paper.run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, _, *rows = ask(paper, capsys, "checkpoint", "list")
    assert " 3.5000  proven" in rows[0] and " 3.2500 at 15  sealed" in rows[1]
    assert rows[0].endswith("  proven, mirrored") and rows[1].endswith("  sealed")
    assert rows[2].split() == ["30", "its", "checkpoint.json", "cannot", "be", "read"]
    assert rows[3].endswith("  sealed, its step is unknown")
    paper.status["body"]["run"] = "another"
    assert ask(paper, capsys, "checkpoint", "list")[2].endswith("  sealed, mirrored")


def test_evaluations_are_shown_by_suite_without_those_that_a_rollback_abandoned(
    paper: OnPaper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "read_identity", lambda *_: None)
    bits = {"value": 1.25, "n": 62, "stderr": 0.01, "higher_is_better": False}
    verdict = {"verdict": "doubt", "difference": 0.01, "low": -0.02, "high": 0.04, "n": 62}
    line = {
        "v": 1,
        "step": 1000,
        "timeline": 0,
        "checkpoint_digest": "c",
        "suite": "heldout",
        "suite_digest": "d",
    }
    line |= {"metrics": {"heldout/bits_per_byte": bits}, "promotion": {"verdict": "promoted", "why": []}}
    against = {"digest": "c", "verdicts": {"heldout/bits_per_byte": verdict}}
    later = line | {"step": 2000, "timeline": 1, "against": against}
    later["promotion"] = {"verdict": "not_promoted", "why": ["bits\tin doubt", "no gate"]}
    failed = line | {"suite": "facts", "metrics": {}, "invalid": "it took too long", "promotion": None}
    with closing(ChainedLog(paper.run.evaluations_log)) as log:
        for one in (line, line | {"step": 1500}, failed, later):
            log.append(one)
    with closing(ChainedLog(paper.run.timelines)) as log:
        log.append(Timeline(1, 0, 1000, (), "asked").body())
    first, _, *rows = ask(paper, capsys, "evaluations")
    assert first == f"run main of {paper.pipeline.name}: 3 results of evaluations"
    assert [row.split("  ")[0] for row in rows if row[0] != " "] == ["facts", "heldout"]
    assert "invalid: it took too long" in rows[1]
    assert "1,000  heldout/bits_per_byte" in rows[3] and " 1.2500 ± 0.0196 " in rows[3]
    assert rows[3].endswith("  promoted")
    assert "doubt +0.0100 (-0.0200 to +0.0400)" in rows[4]
    assert rows[4].endswith("  no: bits\\tin doubt; no gate")
    as_json = json.loads("\n".join(ask(paper, capsys, "evaluations", "--json")))["evaluations"]
    head, *table = (row.split("\t") for row in ask(paper, capsys, "evaluations", "--tsv"))
    assert head == list(as_json[0])
    assert {len(row) for row in table} == {len(head)}
    assert [row[1] for row in table] == ["1000", "1000", "2000"]
    assert [row["n"] for row in as_json] == [None, 62, 62]
