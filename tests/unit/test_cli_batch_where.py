"""`data batch` and `data where` against a run whose every step is remembered in plain Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import read_sources
from stoker.provenance.where import find
from stoker.store.record import write_record
from support.looking import BUILT, FakeRun, Label, Site, make_site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("looking") / "home")


@pytest.fixture
def site(built: Site, tmp_path: Path) -> Site:
    return Site(Path(shutil.copytree(built.home, tmp_path / "home")), built.texts)


def eventful(site: Site) -> FakeRun:
    """Two epochs over three sets, other batches and seq_len on the way, a rollback with a skip."""
    run = FakeRun(site)
    run.plan("a.parquet")
    run.pass_over("bad.parquet")
    run.plan("b.parquet", "c.parquet")
    run.plan("a.parquet", epoch=1, seq_len=32)
    run.plan("b.parquet", "c.parquet", epoch=1)
    run.launch(5)
    run.train(12, 5)
    run.seal()
    run.launch(8)
    run.train(20, 8)
    run.roll_back(18, 24)
    run.launch(10)
    run.train(54, 10)
    run.seal()
    run.train(3, 10)
    assert {entry for windows in run.steps.values() for entry, _ in windows} == {0, 2, 3, 4}
    return run


def in_parts(site: Site) -> FakeRun:
    """A whole set, then parts of another seq_len that begin inside sets, and an epoch that is closed."""
    run = FakeRun(site)
    run.plan("a.parquet")
    left = run.go_on("b.parquet", first=0, windows=20)
    run.go_on("b.parquet", "c.parquet", first=1280, windows=(left + 100) // 32, seq_len=32)
    done = 1280 + (left + 100) // 32 * 32 - 1280 - left  # tokens of c
    more = run.go_on("c.parquet", first=done, windows=10, seq_len=100)
    run.close(0, more)
    run.go_on("a.parquet", first=0, windows=9, epoch=1)
    run.launch(5)
    run.train(len(run.order) // 5, 5)
    return run


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command prints as JSON."""
    assert exit_code([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """How a command ends that cannot answer, and what it says."""
    code = exit_code([str(one) for one in arguments])
    return code, capsys.readouterr().err


def rows_of(report: dict[str, Any]) -> list[list[Label]]:
    """The rows of each window that `batch` shows."""
    return [
        [(part["source"], one["row"]) for part in window["sets"] for one in part["documents"]]
        for window in report["windows"]
    ]


@pytest.mark.parametrize("made", [eventful, in_parts])
def test_a_row_is_found_by_where_in_exactly_the_steps_whose_batch_lists_it(
    site: Site, capsys: pytest.CaptureFixture[str], made: Callable[[Site], FakeRun]
) -> None:
    run = made(site)
    seen: dict[Label, set[int]] = {}
    for step in range(1, run.step + 1):
        report = ask(capsys, "data", "batch", site.file, "main", step)
        windows = run.steps[run.timeline, step]
        assert [(one["entry"], one["offset"]) for one in report["windows"]] == windows
        assert rows_of(report) == [run.labels(window) for window in windows]
        assert report["ends"] == run.positions[run.timeline, step]
        for labels in rows_of(report):
            for label in labels:
                seen.setdefault(label, set()).add(step)
    fates = dict.fromkeys(("train", "held_out", "filtered"), 0)
    for path in BUILT:
        for row in range(1, 60, 2):
            found = find(site.pipeline, path, row)
            fates[found["fate"]] += 1
            assert set(found["runs"][0]["steps"]) == seen.get((path, row), set()), (path, row)
            if found["fate"] == "train":
                assert found["runs"][0]["windows"] or found["runs"][0]["tail_of"]
                assert made is not in_parts or found["runs"][0]["tail_of"] in ([], [4])
            else:
                assert not found["runs"][0]["windows"]
    assert min(fates.values()) > 3
    assert len(seen) > 100


def test_a_window_says_where_it_is_and_shows_its_text(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run = eventful(site)
    report = ask(capsys, "data", "batch", site.file, "main", 3, "--show")
    for window in report["windows"]:
        first, stop = window["tokens"]
        assert (stop - first, window["epoch"]) == (65, 0)
        assert sum(part["tokens"][1] - part["tokens"][0] for part in window["sets"]) == 65
        whole = "".join(
            f"{site.texts[path][row]}<|endoftext|>" for path, row in run.labels((0, window["offset"]))
        )
        assert window["text"].strip("\ufffd") in whole
    assert exit_code(["data", "batch", str(site.file), "main", "3", "--show"]) == 0
    out = capsys.readouterr().out
    assert "run main, step 3 of timeline 0: 5 windows, positions [0, 10] to [0, 15], sealed" in out
    assert "a.parquet  row" in out
    assert "<|endoftext|>" in out
    assert "\x1b" not in out


def test_steps_that_were_given_up_are_shown_for_their_timeline(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = eventful(site)
    old = ask(capsys, "data", "batch", site.file, "main", 20, "--timeline", 0)
    new = ask(capsys, "data", "batch", site.file, "main", 20)
    assert (old["timeline"], new["timeline"]) == (0, 1)
    assert [(one["entry"], one["offset"]) for one in old["windows"]] == run.steps[0, 20]
    assert [(one["entry"], one["offset"]) for one in new["windows"]] == run.steps[1, 20]
    entry, offset = run.steps[0, 20][0]
    path, row = run.labels((entry, offset))[0]
    states = {
        (one["entry"], one["offset"]): one["state"]
        for one in find(site.pipeline, path, row)["runs"][0]["windows"]
    }
    assert states[entry, offset] == "skipped"
    assert exit_code(["data", "where", str(site.file), f"{path}:{row}"]) == 0
    assert "skipped by a rollback" in capsys.readouterr().out


def test_what_is_not_sealed_or_not_made_yet_is_said_so(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = eventful(site)
    assert ask(capsys, "data", "batch", site.file, "main", run.step)["sealed"] is False
    assert ask(capsys, "data", "batch", site.file, "main", run.step - 3)["sealed"] is True
    code, words = refused(capsys, "data", "batch", site.file, "main", run.step + 2)
    assert code == 64
    assert (
        f"run main has come to step {run.step} of timeline 1; step {run.step + 2} is not trained yet" in words
    )
    code, words = refused(capsys, "data", "batch", site.file, "main", 30, "--timeline", 3)
    assert (code, "the run has 0 to 1" in words) == (64, True)
    assert refused(capsys, "data", "batch", site.file, "mian", 3)[1].endswith("did you mean 'main'?\n")
    assert "steps count from 1" in refused(capsys, "data", "batch", site.file, "main", 0)[1]


def test_the_step_that_comes_next_is_shown_as_one_that_was_not_finite_has_to_be(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = eventful(site)
    told = ask(capsys, "data", "batch", site.file, "main", run.step + 1)
    assert (told["made"], told["sealed"], told["timeline"]) == (False, False, 1)
    run.train(1, 10)
    made = ask(capsys, "data", "batch", site.file, "main", run.step)
    assert made["made"] and made["windows"] == told["windows"]
    assert exit_code(["data", "batch", str(site.file), "main", str(run.step + 1)]) == 0
    assert "not made yet" in capsys.readouterr().out


def test_a_step_of_a_longer_timeline_is_pointed_to(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(20, 5)
    run.roll_back(4, 6)
    run.train(3, 5)
    code, words = refused(capsys, "data", "batch", site.file, "main", 15)
    assert (code, "step 15 was made on timeline 0: add --timeline 0" in words) == (64, True)


def test_windows_to_come_are_planned_or_beyond_the_end(site: Site) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(4, 7)
    for finished, coming in ((None, "planned"), ("steps", "beyond")):
        write_record(run.run.consumed, {"v": 1, "finished": finished})
        site.configure(steps=4)
        told: dict[int, tuple[str, int | None]] = {}
        for row in range(0, 60, 2):
            for one in find(site.pipeline, BUILT[0], row)["runs"][0]["windows"]:
                told[one["offset"]] = (one["state"], one["step"])
        assert len(told) > 20
        for offset, found in told.items():
            assert found == (("applied", offset // 7 + 1) if offset < 28 else (coming, None))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            "bad.parquet:0",
            "its file is quarantined (truncated) and is not built",
        ),
        ("late.parquet:7", "its file is staged and is not built into a shard set: no step has seen it"),
        ("same.parquet:2", "same.parquet has the content of c.parquet"),
        ("a.parquet:7", "filtered, no step has seen it (rows of this file dropped: "),
    ],
)
def test_a_row_no_step_saw_has_its_reason(
    site: Site, capsys: pytest.CaptureFixture[str], asked: str, words: str
) -> None:
    eventful(site)
    assert exit_code(["data", "where", str(site.file), asked]) == 0
    assert words in capsys.readouterr().out


def test_a_duplicates_rows_are_its_twins(site: Site) -> None:
    eventful(site)
    mine, twins = (find(site.pipeline, path, 2) for path in ("same.parquet", "c.parquet"))
    assert mine["runs"] == twins["runs"]
    assert mine["twin"] == "c.parquet"
    assert mine["runs"][0]["windows"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("a.parquet:60", "a.parquet has no row 60; it has 60 rows, 0 to 59"),
        ("x.parquet:1", "did you mean"),
        ("nothing:1", "is no source of prose on record"),
        ("a.parquet", "is not SOURCE:ROW"),
        ("a.parquet:-1", "is not SOURCE:ROW"),
        (":3", "is not SOURCE:ROW"),
    ],
)
def test_a_row_that_is_not_there_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], asked: str, words: str
) -> None:
    code, told = refused(capsys, "data", "where", site.file, asked)
    assert (code, words in told) == (64, True), told


def test_a_set_on_warm_is_read_there_and_one_that_is_nowhere_is_named(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    eventful(site)
    hot = site.set_of("a.parquet")
    warm = site.home / "warm" / "shards" / "prose" / hot.name
    warm.parent.mkdir(parents=True)
    hot.rename(warm)
    report = ask(capsys, "data", "batch", site.file, "main", 1)
    assert {part["place"] for window in report["windows"] for part in window["sets"]} == {"warm"}
    assert find(site.pipeline, "a.parquet", 1)["place"] == "warm"
    shutil.rmtree(warm)
    code, words = refused(capsys, "data", "batch", site.file, "main", 1)
    assert (code, f"shard set {hot.name} of a.parquet (proven)" in words) == (69, True)
    assert refused(capsys, "data", "where", site.file, "a.parquet:1")[0] == 69
    assert exit_code(["data", "where", str(site.file), "b.parquet:1"]) == 0  # what it asks for is there


def test_the_source_record_may_be_gone_the_set_tells(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    eventful(site)
    before = ask(capsys, "data", "batch", site.file, "main", 1)
    assert "a.parquet" in read_sources(site.pipeline.layout, "prose")
    site.pipeline.layout.source("prose", "a.parquet").unlink()
    after = ask(capsys, "data", "batch", site.file, "main", 1)
    assert [one["documents"] for window in after["windows"] for one in window["sets"]] == [
        one["documents"] for window in before["windows"] for one in window["sets"]
    ]
    assert after["windows"][0]["sets"][0]["source"] is None


def test_a_log_and_a_checkpoint_that_contradict_each_other_are_not_believed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(5, 6)
    run.seal(position=[0, 29])
    code, words = refused(capsys, "data", "batch", site.file, "main", 5)
    assert (code, "step 5 has position [0, 30], its checkpoint at [0, 29]" in words) == (65, True)


def test_a_run_whose_log_has_a_gap_does_not_hide_the_other_runs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(12, 6)
    old = run.run.root.with_name("old")
    shutil.copytree(run.run.root, old)
    metrics = old / run.run.metrics.relative_to(run.run.root)
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(rows[:1] + rows[-1:]))
    for path, row in sorted({label for window in run.steps[0, 5] for label in run.labels(window)}):
        assert exit_code(["data", "where", str(site.file), f"{path}:{row}"]) == 65
        told = capsys.readouterr().out
        assert "  run main at step 12 of timeline 0: seen in step" in told
        assert "  run old: " in told and "no row between steps 1 and 12" in told


def test_another_set_in_the_place_of_the_planned_one_is_not_read(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    run.plan("a.parquet")
    run.train(2, 6)
    mine, other = site.set_of("a.parquet"), site.set_of("b.parquet")
    shutil.rmtree(mine)
    shutil.copytree(other, mine)
    code, words = refused(capsys, "data", "batch", site.file, "main", 2)
    assert (code, str(mine) in words) == (65, True)


def test_a_run_without_a_step_says_that_it_waits(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has come to step 0" in refused(capsys, "data", "batch", site.file, "main", 1)[1]
    found = find(site.pipeline, "a.parquet", 1)
    assert (found["fate"], found["runs"][0]["planned"]) == ("train", False)


def test_a_look_without_text_imports_nothing_heavy(site: Site) -> None:
    eventful(site)
    code = (
        "import sys; from stoker.cli.main import exit_code; code = exit_code(sys.argv[1:]); "
        "heavy = {'torch', 'tokenizers', 'pyarrow'} & set(sys.modules); "
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    for arguments in (("data", "batch", site.file, "main", "3"), ("data", "where", site.file, "a.parquet:1")):
        ended = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "[]\n")
