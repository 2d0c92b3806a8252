"""`stoker report`: what is read of long and damaged logs, what is said of what is missing, the page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cli.main import exit_code
from stoker.cli.report.page import MOST_CHARS, Missing, Table, as_html
from stoker.cli.report.sections import sections_of
from stoker.cli.report.series import read_columns, read_steps
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count
from stoker.observe.drawing import MOST_COLOURS, MOST_POINTS, Panel, extremes, inline_svg
from stoker.observe.verdict import Finding, Verdict
from stoker.store.errors import StorageError
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise import outlook
from support.config_files import write_pipeline

AT = "2026-11-20T12:00:{:02}Z"
MOST_PAGE_BYTES = 3 << 20


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return load_pipeline(write_pipeline(tmp_path), {})


def said(pipeline: Pipeline) -> dict[str, list[str]]:
    """What is missing, by section."""
    found = sections_of(pipeline).items()
    return {title: [part.missing for part in parts if isinstance(part, Missing)] for title, parts in found}


def table(pipeline: Pipeline, section: str) -> Table:
    (found,) = [part for part in sections_of(pipeline)[section] if isinstance(part, Table)]
    return found


def row(step: int, timeline: int = 0, **more: Any) -> bytes:
    return json.dumps({"step": step, "timeline": timeline, **more}).encode() + b"\n"


def test_a_curve_keeps_its_ends_and_the_extremes_of_each_stretch() -> None:
    at = np.arange(100_000.0)
    values = np.random.default_rng(1).normal(size=at.size)
    values[[12_345, 77_777]] = 99.0, -99.0
    kept, shown = extremes((at, values))
    assert len(kept) <= MOST_POINTS and {0.0, 12_345.0, 77_777.0, 99_999.0} <= {*kept}
    assert (shown == values[kept.astype(int)]).all() and (np.diff(kept) > 0).all()
    few = at[:MOST_POINTS], values[:MOST_POINTS]
    assert extremes(few) is few


@pytest.mark.parametrize(
    ("lines", "losses", "counts"),
    [
        ([row(1, loss=3.0), row(2, loss=None)], {(0, "training"): [(1, 3.0)]}, (0, 0)),
        ([row(2, val_loss=2.5), row(2, val_loss=None)], {(0, "held-out"): [(2, 2.5)]}, (0, 0)),
        ([row(1, loss=3.0, tokens_per_s=5, time=AT.format(0))], {(0, "training"): [(1, 3.0)]}, (1, 0)),
        ([row(1, 2, loss=3.0), b'{"step": 2, "loss"'], {(2, "training"): [(1, 3.0)]}, (0, 0)),
        ([b"\0\0\n", b"[]\n", row(1, loss=3.0), b'{"step":1}\n'], {(0, "training"): [(1, 3.0)]}, (0, 3)),
        ([row(10**400, loss=3.0), row(1, "x", loss=3.0)], {}, (0, 2)),
        ([row(1, loss=1e300), row(2, tokens_per_s=5, time="9999-12-31T23:59:59Z")], {}, (0, 0)),
        ([row(2, tokens_per_s=5, time="now"), row(2, tokens_per_s=5, time=3)], {}, (0, 2)),
        ([b"x" * 200_000 + b"\n", row(1, loss=3.0)], {(0, "training"): [(1, 3.0)]}, (0, 1)),
    ],
)
def test_what_is_readable_of_a_training_log_is_read_and_the_rest_counted(
    lines: list[bytes], losses: Any, counts: tuple[int, int], tmp_path: Path
) -> None:
    (log := tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    found = read_steps(log)
    assert ({name: pairs for name, pairs in found.losses.items() if pairs}, found.share) == (losses, 1.0)
    assert (len(found.speeds), found.unread) == counts


def test_of_a_long_log_pieces_from_begin_to_end_are_read(tmp_path: Path) -> None:
    (log := tmp_path / "metrics.jsonl").write_bytes(b"".join(row(step, loss=1.0) for step in range(40_000)))
    found = read_steps(log, most_bytes=1 << 18)
    steps = [step for step, _ in found.losses[0, "training"]]
    assert steps[0] == 0 and steps[-1] == 39_999 and found.unread == 0 and steps == sorted(set(steps))
    assert found.share == pytest.approx((1 << 18) / log.stat().st_size)
    assert 0.7 < len(steps) / 40_000 / found.share <= 1.0
    assert max(np.diff(steps)) < 2 * 40_000 / 512


def test_a_report_before_the_run_says_what_there_is_not(pipeline: Pipeline) -> None:
    assert said(pipeline) == {
        "Time left": [],
        "Loss": ["no step has been made yet"],
        "Throughput": ["no row of the training log has a speed and a time"],
        "Where the time went": [
            "no run has begun yet, or the account of its time (goodput.json) is not there"
        ],
        "Launches": ["no launch has begun yet"],
        "Memory by role": [
            f"{daemon}: no sample that can be read; each daemon writes one a minute"
            for daemon in ("Download watchdog", "Stage-shard loop", "Train supervisor")
        ],
        "GPUs": ["no GPU was sampled"],
        "Disks": ["no sample that can be read; each daemon writes one a minute"],
        "Quarantine": [],
    }
    judged, *_ = sections_of(pipeline)["Time left"]
    assert isinstance(judged, Verdict) and judged.grade == "waits"


def test_what_is_damaged_or_of_another_version_is_said_where_it_belongs(pipeline: Pipeline) -> None:
    run = pipeline.layout.run("main")
    run.create()
    write_record(run.goodput, {"v": 2})
    log = ChainedLog(run.runs)
    for number in range(3):
        log.append({"v": 1, "launch": f"l{number}", "timeline": 0, "resume_step": 0, "begin": AT.format(0)})
    log.close()
    lines = run.runs.read_bytes().splitlines(keepends=True)
    run.runs.write_bytes(lines[0] + b"garbage\n" + lines[2])
    run.timelines.write_bytes(b"garbage\n")
    run.metrics.write_bytes(row(1, loss=2.0) + b"garbage\n")
    pipeline.layout.samples("stage_shard").parent.mkdir()
    pipeline.layout.samples("stage_shard").write_bytes(b"\xff\0garbage\n")
    missing = said(pipeline)
    assert missing["Loss"][0] == "1 line of the training log cannot be read"
    assert "timelines.jsonl: line 1 does not parse" in missing["Loss"][1]
    assert "is of format version 2, this Stoker reads version 1" in missing["Where the time went"][0]
    assert "runs.jsonl is damaged, what else is in it is shown: line 3" in missing["Launches"][0]
    assert [one[0] for one in table(pipeline, "Launches").rows] == ["l2", "l0"]
    (loss,) = [part for part in sections_of(pipeline)["Loss"] if isinstance(part, Panel)]
    assert [(name, values.tolist()) for name, (_, values) in loss.curves.items()] == [
        ("timeline 0, training", [2.0])
    ]
    text = as_html(pipeline, sections_of(pipeline)).decode()
    assert "</i>timeline 0, training: newest 2 at step 1, lowest 2, highest 2<" in text
    write_record(run.goodput, {"v": 1, "account": {"totals": 5}})
    assert (
        "has another form than this version of Stoker writes (KeyError"
        in said(pipeline)["Where the time went"][0]
    )


def test_without_the_right_to_read_the_status_there_is_a_page_without_a_verdict(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> Any:
        raise StorageError("cannot read it; become a member of the group that owns it")

    monkeypatch.setattr(outlook, "read_status", refused)
    text = as_html(pipeline, sections_of(pipeline)).decode()
    assert "no verdict can be given" in text and text.count("become a member of the group") == 1
    assert "nothing is in quarantine" in text


def test_samples_are_columns_in_order_of_time_without_what_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    head = "time,a_rss_bytes,processes\n"
    Path(f"{path}.1").write_text(
        f"{head}{AT.format(5)},5,1\n{AT.format(6)},inf,1\n1850-01-01T00:00:00Z,1,1\n"
    )
    path.write_text(f"{head}{AT.format(3)},3,1\n{AT.format(7)},,1\nnow,8,1\n{AT.format(9)},9")
    (name, (at, sizes)), *rest = read_columns(path).items()
    assert (name, sizes.tolist(), rest) == ("a_rss_bytes", [3.0, 5.0], []) and at[1] - at[0] == 2.0


def test_a_page_has_no_script_no_address_and_no_text_that_is_not_escaped(pipeline: Pipeline) -> None:
    bad = "<script src='https://x/'>\x1b[31m\udcff" + "x" * 1000
    at = np.array([0.0, 60.0, 9000.0]), np.array([1.0, 2.0, 3.0])
    panels = [
        Panel(f"{over} {bad}", {bad: at, "b": at}, unit=unit, over=over)
        for unit, over in ((str, "step"), (format_count, "time"), (format_bytes, "duration"))
    ]
    judged = Verdict("broken", bad, (Finding("broken", bad, bad),))
    shown = [bad, Missing(bad), Table((bad,), [(bad,)]), *panels]
    text = as_html(pipeline, {"F": [judged], "S": shown}).decode()
    assert "<script" not in text and "<b>&lt;script" in text and "\x1b" not in text
    assert not re.search(r"""(?<!&#39;https)://|(src|href)=["'](?!#)|url\((?!#)|@import""", text)
    assert "\\x1b[31m\\udcff" in text and "x" * MOST_CHARS not in text
    ids = re.findall(r'id="([^"]*)"', "".join(map(inline_svg, panels[:2])))
    assert len(ids) == len({*ids}), "the pictures of a page do not share ids"


def test_a_page_with_every_curve_full_stays_below_its_limit() -> None:
    at = np.arange(50_000.0)
    rough = np.random.default_rng(1).normal(1e10, 1e9, size=at.size)
    panel = Panel("p", {str(number): (at, rough) for number in range(MOST_COLOURS)}, over="time")
    one = inline_svg(panel)
    assert max(path.count("L") for path in re.findall(r' d="([^"]*)"', one)) <= MOST_POINTS
    # Loss and memory of three daemons have so many; speed, GPUs and disks fewer.
    assert 5 * len(one) < MOST_PAGE_BYTES


@pytest.mark.parametrize("output", ["", "away/x.html", "pipe"])
def test_where_no_file_can_be_replaced_nothing_is_written(
    output: str, pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    assert exit_code(["report", str(pipeline.file), "-o", str(tmp_path / output)]) == 64
    told = f"{tmp_path / output} cannot be written as a file; name one in a directory that exists"
    assert told in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_is_replaced_where_a_link_leads_and_a_dash_is_standard_output(
    pipeline: Pipeline, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "old.html").write_text("old")
    (link := tmp_path / "link.html").symlink_to("old.html")
    assert exit_code(["report", str(pipeline.file), "-o", str(link)]) == 0
    assert link.is_symlink() and (tmp_path / "old.html").read_text().startswith("<!doctype html>")
    assert capfdbinary.readouterr().out.startswith(f"wrote {tmp_path / 'old.html'}, ".encode())
    assert exit_code(["report", str(pipeline.file), "-o", "-"]) == 0
    written = capfdbinary.readouterr().out
    assert written.startswith(b"<!doctype html>") and written.endswith(b"</html>\n")
    assert not list(tmp_path.glob("*-report.html"))
