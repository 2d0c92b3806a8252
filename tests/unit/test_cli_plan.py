"""`stoker data plan` over a run on paper: its figures, what it keeps on hot, and what it waits for."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import read_sources, write_source
from stoker.kit.lock import Lock
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.log import read_plan
from stoker.plan.positions import Position
from stoker.store.layout import TRAIN_SUPERVISOR, RuntimeLayout
from stoker.store.record import read_record, write_record
from support.looking import BUILT, FakeRun, Site, make_site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("plan") / "home")


@pytest.fixture
def site(built: Site, tmp_path: Path) -> Site:
    return Site(Path(shutil.copytree(built.home, tmp_path / "home")), built.texts)


def ask(site: Site, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert exit_code(["data", "plan", str(site.file), *options, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def shown(site: Site, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert exit_code(["data", "plan", str(site.file), *options]) == 0
    return capsys.readouterr().out


def change(site: Site, path: str, **changes: Any) -> str:
    """Change a source's record; returns its key."""
    source = replace(read_sources(site.pipeline.layout, "prose")[path], **changes)
    write_source(site.pipeline.layout, source)
    return str(source.key)


def consumed(run: FakeRun, low_water: list[int], wants: tuple[str, ...] = (), **changes: Any) -> None:
    """Leave the supervisor's word on the run."""
    position = run.positions[run.timeline, run.step]
    body = consumed_body(
        Holdings("main", read_plan(run.run.plan), Position(*low_water), wants, windows_per_s=2.0),
        "step",
        {"step": run.step, "position": position, "tokens": run.tokens},
    )
    write_record(run.run.consumed, body | changes)


def test_the_figures_are_those_of_plan_log_and_rollback(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    run.plan("a.parquet")
    run.pass_over("bad.parquet")
    run.plan("b.parquet", seq_len=32)
    run.train(20, 6)
    run.roll_back(10, 12)
    run.train(5, 6)
    consumed(run, [0, 42])
    report = ask(site, capsys)
    windows = {entry: sum(one == entry for one, _ in run.order) for entry in (0, 2)}
    assert (report["step"], report["timeline"], report["position"]) == (15, 1, [0, 102])
    assert report["windows"] == {
        "planned": len(run.order),
        "applied": 90,
        "skipped": 12,
        "remainder": 0,
        "ahead": len(run.order) - 102,
    }
    assert report["tokens"]["applied"] == 90 * 64
    assert report["tokens"]["ahead"] == (windows[0] - 102) * 64 + windows[2] * 32
    first, passed, last = report["entries"]
    assert (first["read"], first["state"], last["read"], last["state"]) == (102, "reading", 0, "ahead")
    assert passed == {"n": 1, "passed": ["bad.parquet", "quarantined"]}
    assert last["due_s"] == pytest.approx((windows[0] - 102) / 2.0)
    assert report["lasts_s"] == pytest.approx((windows[0] + windows[2] - 102) / 2.0)
    out = shown(site, capsys)
    for words in (
        "run main of small: step 15 of 60, epoch 0, entry 0 offset 102",
        f"= 90 applied + 12 skipped + 0 remainder + {len(run.order) - 102} ahead",
        "1 from step 10 of timeline 0 (spike; skips [0, 60] to [0, 72])",
        f"being read, {102 / windows[0]:.0%}",
        "entry 2 is due in",
        "skipped bad.parquet: quarantined",
        "low water   entry 0 offset 42",
    ):
        assert words in out, out


def test_what_is_held_wanted_away_and_free_to_leave_is_told_of_each_set(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    run.plan("a.parquet")
    run.plan("b.parquet")
    run.train(30, 6)
    keys = {path: change(site, path, on_warm=True) for path in BUILT}
    change(site, "c.parquet", evicted=True)
    consumed(run, [1, 2], wants=(keys["c.parquet"],))
    assert run.positions[0, 30][0] == 1
    by_source = {one["source"]: one for one in ask(site, capsys)["sets"]}
    assert {path: one["place"] for path, one in by_source.items()} == {
        "a.parquet": "hot",
        "b.parquet": "hot",
        "c.parquet": "warm",
    }
    assert [path for path, one in by_source.items() if one["planned"]] == ["b.parquet"]
    assert [path for path, one in by_source.items() if one["wanted"]] == ["c.parquet"]
    assert [path for path, one in by_source.items() if one["evictable"]] == ["a.parquet"]
    assert all(one["bytes"] > 5000 for one in by_source.values())
    out = shown(site, capsys)
    assert "3: 2 on hot, 1 on warm only; 1 planned to be read, 1 wanted" in out
    assert "wanted back 1 from warm: c.parquet" in out
    assert "1 could leave hot now" in out
    change(site, "a.parquet", on_warm=False)
    assert not any(one["evictable"] for one in ask(site, capsys)["sets"])


def test_parts_and_the_end_of_their_epoch_are_told(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(site)
    left = run.go_on("a.parquet", first=0, windows=12)
    run.close(0, left)
    run.train(1, 6)
    report = ask(site, capsys)
    assert report["entries"][1] == {"n": 1, "closed": ["prose", 0], "tail_tokens": left}
    assert report["tokens"] == {"applied": 6 * 64, "ahead": 6 * 64, "tail": left}
    assert f"epoch 0 of prose ends, {left:,} tokens are left" in shown(site, capsys)


def test_what_the_plan_waits_for_is_the_supervisors_word(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(50, 6)
    runtime = RuntimeLayout.at(tmp_path / "runtime")
    runtime.create()
    lock, extra = site.pipeline.layout.lock(TRAIN_SUPERVISOR), {"runtime": str(runtime.root)}
    body = {"run": "main", "doing": "training", "waiting_for": None}
    with Lock.acquire(lock, purpose=TRAIN_SUPERVISOR, extra=extra):
        for waits_for, said in (("late.parquet", "late.parquet"), (None, "nothing: it is far enough ahead")):
            runtime.status(TRAIN_SUPERVISOR).write_text(json.dumps({**body, "plan_waits_for": waits_for}))
            assert ask(site, capsys)["waits_for"] == waits_for
            out = shown(site, capsys)
            assert f"waits for   {said}\n" in out and "supervisor  training\n" in out
        runtime.status(TRAIN_SUPERVISOR).write_text(json.dumps({**body, "waiting_for": "the gate"}))
        assert ask(site, capsys)["waits_for"] == "the gate"
    assert "supervisor  not running" in shown(site, capsys)


def test_a_run_that_is_to_go_on_is_not_finished(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(site)
    run.plan(*BUILT)
    run.train(50, 6)
    site.configure(steps=50)
    consumed(run, [0, 300], finished="steps")
    assert ask(site, capsys)["finished"] == "steps"
    assert "all its steps are done" in shown(site, capsys)
    site.configure(steps=70)  # more were asked for: it goes on
    assert ask(site, capsys)["finished"] is None


def test_a_plan_that_has_ended_waits_for_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(site)
    run.plan("a.parquet")
    run.end()
    run.train(len(run.order) // 6, 6)
    consumed(run, [0, 0], finished="data_exhausted")
    report = ask(site, capsys)
    assert (report["ended"], report["entries"][-1]["end"]) == (True, "data_exhausted")
    assert report["windows"]["remainder"] == len(run.order) % 6
    assert "the data is used up" in shown(site, capsys)


def test_before_there_is_a_plan_it_says_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert "run main of small: no plan yet" in shown(site, capsys)
    site.pipeline.layout.dataset("prose").unlink()
    assert "run main of small: no plan yet" in shown(site, capsys)


def test_a_long_plan_is_shown_around_the_position_and_in_full_when_asked(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(site)
    for epoch in range(40):
        run.plan("a.parquet", epoch=epoch, seq_len=512)
    run.train(90, 6)
    entry = run.positions[0, 90][0]
    assert 20 < entry < 35
    lines = shown(site, capsys).splitlines()
    numbers = [int(line.split()[0]) for line in lines[:-1] if line.split()[0].isdigit()]
    assert entry in numbers
    assert len(numbers) == 16
    assert lines[-1] == "16 of 40 entries; --all shows every one"
    assert len(shown(site, capsys, "--all").splitlines()) == len(lines) - 1 + 24
    assert len(ask(site, capsys)["entries"]) == 40


def test_a_run_that_is_not_there_another_runs_plan_and_a_damaged_one_are_errors(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["data", "plan", str(site.file), "--run", "other"]) == 64
    assert "no run of this name has begun" in capsys.readouterr().err
    run = FakeRun(site)
    run.plan("a.parquet")
    run.plan("b.parquet")
    lines = run.run.plan.read_text().splitlines(keepends=True)
    copy = site.pipeline.layout.run("copy")
    copy.create()
    record = read_record(run.run.record)
    write_record(copy.record, {**record, "run": "copy", "run_id": "e" * 32})
    (copy.plan).write_text("".join(lines))
    assert exit_code(["data", "plan", str(site.file), "--run", "copy"]) == 65
    assert "another run" in capsys.readouterr().err
    run.run.plan.write_text(lines[1] + lines[0])
    assert exit_code(["data", "plan", str(site.file)]) == 65
    assert str(run.run.plan) in capsys.readouterr().err
