"""Evaluations by the real supervisor: what is due, what is promoted, what is held, and kills on the way."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.log import read_log
from stoker.store.record import read_record, write_record
from stoker.supervise.run.launch_ends import read_ends
from support.evaluator import METRIC
from support.sites import write_site
from support.training import TrainPipeline, make_training

# In the supervisor: another worker, and a kill -9 where a file asks for one.
_SITE = """
if any("train_supervisor" in word for word in sys.orig_argv):
    import signal
    from dataclasses import replace
    from pathlib import Path
    from stokerd.supervision.jobs.evaluation_books import EvaluationBooks
    from stokerd.supervision.jobs import ACTIVITIES
    for kind in ("evaluation", "evaluation_between"):
        ACTIVITIES[kind] = replace(ACTIVITIES[kind], module="support.evaluator")
    def dies(word, name, is_there):
        of = getattr(EvaluationBooks, name)
        def instead(books, *words):
            if (file := Path(__file__).with_name(word)).exists() and is_there(books):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return of(books, *words)
        setattr(EvaluationBooks, name, instead)
    dies("before", "add", lambda books: True)
    dies("between", "_carry_out", lambda books: books._promoting is not None)
    dies("held", "add", lambda books: books._run.store.begun.held)
    dies("after", "shown", lambda books: books._run.layout.promoted.exists())
"""
# In the process that WHOSE names: a kill -9 at the NTH write below the state, once; counted from the first
# that has to do with evaluations.
_COUNTED = """
WHOSE, NTH, KILLED = os.environ["WHOSE"], int(os.environ["NTH"]), os.environ["KILLED"]
if any(WHOSE in word for word in sys.orig_argv) and not os.path.exists(KILLED):
    import signal
    seen = []
    def look(event, words):
        writes = event in ("os.rename", "os.remove") or event == "open" and words[2] & os.O_ACCMODE
        if writes and "/state/" in (path := str(words[0])) and (seen or "/evaluations" in path):
            seen.append(path)
            if len(seen) == NTH:
                os.close(os.open(KILLED, os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)
"""
SUITES = Path(__file__).parents[2] / "etc" / "suites"
Make = Callable[..., TrainPipeline]
PROMOTE = {"primary": METRIC, "gate": "smoke"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (place := tmp_path / "site").mkdir()
    write_site(place, _SITE)
    monkeypatch.setenv("PYTHONPATH", f"{place}:{Path(__file__).parents[1]}")
    return place


@pytest.fixture
def make(site: Path, tmp_path: Path) -> Make:
    """A pipeline whose suites are evaluated as the words say, by step."""

    def made(template: Path, suites: dict[str, dict[str, str]], **changes: Any) -> TrainPipeline:
        home = tmp_path / "home"
        home.mkdir()
        for name, ends in suites.items():
            (home / f"{name}.yaml").write_text(f"name: {name}\ntasks: [{name}]\n")
            (home / f"{name}.json").write_text(json.dumps(ends))
        entries = [
            {"suite": str(home / f"{name}.yaml"), **changes.get(name, {"at": ["finish"]})} for name in suites
        ]
        keys = {key: value for key, value in changes.items() if key not in suites}
        return make_training(template, home, evaluations=entries, **keys)

    return made


def real(finished: TrainPipeline, place: Path) -> TrainPipeline:
    """A finished run whose last checkpoint the real worker evaluates with five texts."""
    suite = place / "heldout.yaml"
    suite.write_text((SUITES / suite.name).read_text() + "limit: 5\n")
    shutil.copytree(SUITES / "heldout", place / "heldout")
    entry = {"suite": str(suite), "at": ["finish"]}
    home, promote = place / "home", {"primary": METRIC}
    return make_training(finished.data.home, home, with_torch=True, evaluations=[entry], promote=promote)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """Kills the process that a word of its command names at its nth write, once; returns what says so."""

    def at(whose: str, nth: int) -> Path:
        place = tmp_path / "site"
        place.mkdir(exist_ok=True)
        write_site(place, (_SITE if whose == "train_supervisor" else "") + _COUNTED)
        for name, value in (("WHOSE", whose), ("NTH", str(nth)), ("KILLED", str(tmp_path / "killed"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", f"{place}:{Path(__file__).parents[1]}")
        return tmp_path / "killed"

    return at


def lines(run: TrainPipeline) -> list[tuple[str, int, str | None, str]]:
    reading = read_log(run.run.evaluations_log)
    assert reading.damage == ()
    return [
        (one["suite"], one["step"], one["invalid"], one["promotion"]["verdict"]) for one in reading.entries
    ]


def tasks(run: TrainPipeline, suite: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.data.home / f"{suite}.tasks").read_text().splitlines()]


def test_between_launches_the_better_is_promoted_and_kept_and_the_worse_pauses_a_run_of_the_same_bits(
    make: Make, shard_sets: Path, finished: TrainPipeline
) -> None:
    run = make(
        shard_sets,
        {"heldout": {"40": "worse"}, "smoke": {}},
        heldout={"every_steps": 20, "where": "between"},
        smoke={"where": "between"},
        promote={**PROMOTE, "on_regression": "pause"},
        train__checkpoint={"every": None, "every_steps": 10, "keep_last": 1},
    )
    assert run.once().returncode == 75, "paused"
    assert "promote.on_regression (step 40 is worse" in run.record()["paused"]["by"]
    assert run.events("evaluation_regressed")[0]["than"] == 20
    assert [step for _, step, _, _ in lines(run)] == [20, 20, 40]
    assert {"step-000000020", "step-000000040"} <= {*run.checkpoints()}, "what is promoted is kept"
    assert exit_code(["resume", str(run.data.file)]) == 0
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert lines(run) == [
        ("heldout", 20, None, "none"),
        ("smoke", 20, None, "promoted"),
        ("heldout", 40, None, "not_promoted"),
        ("smoke", 40, None, "not_promoted"),
        ("heldout", 60, None, "none"),
        ("smoke", 60, None, "promoted"),
    ]
    assert [event["resume_step"] for event in run.events("trainer_launched")] == [0, 20, 40]
    baselines = [one["baseline"] for one in tasks(run, "heldout")]
    assert baselines[0] is None and baselines[2] == baselines[1]
    assert [one["timeout_s"] for one in tasks(run, "heldout")] == [3600, 7200, 7200], "for both models"
    assert baselines[1]["checkpoint"].endswith("step-000000020")
    assert run.checkpoints() == ["step-000000060"], "its successor is promoted"
    assert run.tensors() == finished.tensors(), "the bits of a run without evaluations"
    shown = run.data.status(TRAIN_SUPERVISOR)["evaluations"]
    assert (shown["step"], shown["promoted_step"]) == ({"heldout": 60, "smoke": 60}, 60)
    assert (shown["value"], shown["verdict"]) == (
        {"heldout": {METRIC: 1.0}, "smoke": {}},
        {METRIC: {"better": 1}},
    )
    ends, _ = read_ends(run.run.runs)
    assert sum(one.seconds.get("evaluation", 0.0) for one in ends) > 0


def test_a_regression_holds_the_run_whatever_is_killed_before_its_line_is_written(
    make: Make, site: Path, shard_sets: Path
) -> None:
    run = make(
        shard_sets,
        {"heldout": {"40": "worse"}, "smoke": {}},
        **{name: {"every_steps": 20, "where": "between"} for name in ("heldout", "smoke")},
        promote={**PROMOTE, "on_regression": "pause"},
    )
    (site / "held").touch()
    assert run.once().returncode == -signal.SIGKILL
    assert [one[1] for one in lines(run)] == [20, 20]
    for written in (0, 1):  # resumed too early, it is evaluated again, and held once more
        assert run.once().returncode == 75, "paused"
        assert [one[:2] for one in lines(run)].count(("heldout", 40)) == written
        assert exit_code(["resume", str(run.data.file)]) == 0
    assert run.once().returncode == 0
    assert [event["step"] for event in run.events("run_paused")] == [40, 40]


def test_an_evaluation_that_fails_is_recorded_and_not_tried_again_and_one_short_of_memory_once_more(
    make: Make, finished: TrainPipeline
) -> None:
    suites = {name: {"60": name} for name in ("memory", "killed", "late", "refused")}
    run = make(finished.data.home, suites, late={"at": ["finish"], "timeout": "0.2s"})
    for _ in range(2):  # the second finds nothing due
        ended = run.once()
        assert ended.returncode == 0, ended.stderr
    assert [one["batch"] for one in tasks(run, "memory")] == [8, 4]
    assert [one["batch"] for one in tasks(run, "killed")] == [8, 4], "it may have been the kernel"
    found = {suite: invalid for suite, step, invalid, _ in lines(run) if step == 60}
    assert len(found) == len(lines(run)) == 4 and found["killed"] is None
    assert "a batch of 4" in (found["memory"] or "")
    assert "longer than it may" in (found["late"] or "")
    assert found["refused"] == "its data changed"
    assert len(run.events("evaluation_failed")) == 3


def test_each_evaluation_counts_once_whatever_is_killed_and_promoted_json_is_the_old_or_the_new_one(
    make: Make, site: Path, finished: TrainPipeline
) -> None:
    run = make(finished.data.home, {"heldout": {}, "smoke": {}}, promote=PROMOTE)
    for place, count, is_promoted in (("before", 0, False), ("between", 2, False), ("after", 2, True)):
        (site / place).touch()
        assert run.once().returncode == -signal.SIGKILL
        assert (len(lines(run)), run.run.promoted.exists()) == (count, is_promoted)
    assert run.once().returncode == 0
    assert [one[:2] for one in lines(run)] == [("heldout", 60), ("smoke", 60)]
    assert read_record(run.run.promoted)["line"] == read_log(run.run.evaluations_log).hashes[1]


@pytest.mark.long
@pytest.mark.parametrize("nth", range(1, 21))
def test_a_kill_at_any_write_of_the_supervisor_leaves_each_evaluation_once(
    nth: int, make: Make, shard_sets: Path, counted: Callable[[str, int], Path]
) -> None:
    checkpoint = {"every": None, "every_steps": 10, "milestones": [10, 20, 30, 40, 50, 60]}
    run = make(
        shard_sets,
        {"heldout": {}, "smoke": {}},
        **{name: {"at": ["milestones"]} for name in ("heldout", "smoke")},
        promote=PROMOTE,
        train__checkpoint=checkpoint,
    )
    killed, ended = counted("train_supervisor", nth), run.once().returncode
    # Of a quick run some records are written once that a slow one writes twice.
    assert ended == (-signal.SIGKILL if killed.exists() else 0) and (killed.exists() or nth > 12)
    for _ in range(2):  # the second finds nothing due
        assert run.once().returncode == 0
    found = lines(run)
    assert len({one[:2] for one in found}) == len(found) and {invalid for _, _, invalid, _ in found} == {None}
    assert {one[:2] for one in found} == {
        (suite, step) for suite in ("heldout", "smoke") for step in range(10, 70, 10)
    }
    log = read_log(run.run.evaluations_log)
    last = [n for n, one in enumerate(log.entries) if one["promotion"]["verdict"] == "promoted"][-1]
    assert read_record(run.run.promoted)["line"] == log.hashes[last]


@pytest.mark.long
@pytest.mark.parametrize("nth", range(1, 11))
def test_a_kill_at_any_write_of_the_worker_leaves_its_evaluation_once(
    nth: int, finished_with_torch: TrainPipeline, tmp_path: Path, counted: Callable[[str, int], Path]
) -> None:
    run = real(finished_with_torch, tmp_path)
    killed = counted("stoker.evaluation.worker", nth)
    ended = run.once()
    assert (ended.returncode, killed.exists()) == (0, True), ended.stderr
    assert lines(run) == [("heldout", 60, None, "promoted")]
    assert {path.suffix for path in run.run.evaluations.iterdir() if path.is_file()} <= {".gz"}


def test_a_rollback_past_the_promoted_step_takes_it_out_of_force(
    make: Make, finished: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(finished.data.home, {"heldout": {"60": "worse"}, "smoke": {}}, promote=PROMOTE)
    assert run.once().returncode == 0
    before, file = read_record(run.run.promoted), str(run.data.file)
    assert exit_code(["rollback", file, "50"]) == 0
    (run.data.home / "smoke.json").write_text('{"60": "fails"}')
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert read_record(run.run.promoted) == before, "it stands, and no longer counts"
    assert len(run.events("checkpoint_promoted")) == 1
    assert [one["baseline"] for one in tasks(run, "heldout")] == [None, None]
    assert lines(run)[2:] == [("heldout", 60, None, "none"), ("smoke", 60, None, "not_promoted")]
    capsys.readouterr()
    assert exit_code(["bundle", file, str(tmp_path / "out"), "--promoted"]) == 64
    assert "a rollback went back past it" in capsys.readouterr().err


def test_the_real_worker_evaluates_a_real_model_which_is_promoted_and_bundled_with_the_evidence(
    finished_with_torch: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = real(finished_with_torch, tmp_path)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert lines(run) == [("heldout", 60, None, "promoted")], run.events("evaluation_failed")
    out = tmp_path / "out"
    assert exit_code(["bundle", str(run.data.file), str(out), "--promoted"]) == 0, capsys.readouterr().err
    (evidence,) = json.loads((out / "release.json").read_bytes())["evaluations"]
    (line,) = read_log(run.run.evaluations_log).entries
    assert evidence == {name: line[name] for name in ("suite", "suite_digest", "metrics")}
    value, stderr = (line["metrics"][METRIC][name] for name in ("value", "stderr"))
    assert f"| {value} | {stderr} | {line['metrics'][METRIC]['n']} |" in (out / "README.md").read_text()
    write_record(run.run.promoted, read_record(run.run.promoted) | {"digest": "d" * 64})
    assert exit_code(["bundle", str(run.data.file), str(tmp_path / "other"), "--promoted"]) == 65
