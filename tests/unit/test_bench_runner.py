"""The bench: variants take turns, medians and ratios are right, limits fail it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_variants_take_turns_and_ratios_are_to_the_first_one(tmp_path: Path) -> None:
    from benchlib.runner import Scenario, run, table

    called: list[str] = []

    class Two(Scenario):
        name = "two"
        limits: ClassVar = {"work_s": 3.0}

        def prepare(self, directory: Path) -> None:
            called.append("prepare")

        def variants(self) -> Mapping[str, Callable[[Path], Mapping[str, float]]]:
            return {
                "scale": lambda at: self.measure("scale", 2.0),
                "other": lambda at: self.measure("other", 5.0),
            }

        def measure(self, name: str, value: float) -> Mapping[str, float]:
            called.append(name)
            return {"work_s": value * len(called)}  # a machine that grows slower and slower

    result = run(Two(), 3, tmp_path)
    assert called == ["prepare", "scale", "other", "other", "scale", "scale", "other"]
    assert result.series["scale"]["work_s"].values == (4.0, 10.0, 12.0)
    assert result.series["other"]["work_s"].median == 20.0
    assert result.series["other"]["work_s"].ratio == pytest.approx(35 / 12)
    assert result.over_limit == ("other: work_s 20.00 s > 3.00 s",)
    assert "OVER THE LIMIT" in table(result)
    assert json.loads(json.dumps(result.as_json()))["variants"]["scale"]["work_s"]["median"] == 10.0


def test_the_start_of_a_daemon_is_measured_to_its_ready_and_a_failed_one_is_told(tmp_path: Path) -> None:
    from benchlib.scenarios.start import Start, measure_start

    scenario = Start()
    scenario.prepare(tmp_path)
    python, watchdog, *_ = scenario.variants().values()
    bare, daemon = python(tmp_path), watchdog(tmp_path)
    assert bare["ready_s"] > 0 and daemon["ready_s"] > 0  # which took longer, one start each does not tell
    assert bare["rss_bytes"] < daemon["rss_bytes"] <= scenario.limits["rss_bytes"]
    with pytest.raises(RuntimeError, match="out of order"):
        measure_start([sys.executable, "-c", "raise SystemExit('out of order')"], tmp_path)


def test_the_command_lists_its_scenarios_and_refuses_unknown_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchlib.__main__ import main

    assert main(["--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {"start", "train-demo", "train-losses", "train-memory", "train-launch", "train-muon"} <= listed
    assert main(["no-such"]) == 64
    assert "no-such" in capsys.readouterr().err
    assert (
        main(["store", "--repeats", "1", "--json", str(tmp_path / "figures.json"), "--dir", str(tmp_path)])
        == 0
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures["results"][0]["variants"]) == {"not durable", "durable"}


def test_what_a_scenario_finds_itself_fails_the_bench_too(tmp_path: Path) -> None:
    from benchlib.runner import Scenario, Series, run

    class Judging(Scenario):
        name = "judging"

        def variants(self) -> Mapping[str, Callable[[Path], Mapping[str, float]]]:
            return {"one": lambda _: {"work_s": 2.0}}

        def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
            yield f"one: {series['one']['work_s'].median:g} s"

    assert run(Judging(), 1, tmp_path).over_limit == ("one: 2 s",)


def test_a_bar_is_told_as_met_or_not_and_one_name_measures_all_that_begin_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchlib import __main__
    from benchlib.runner import Bar, Scenario, Series

    ended: list[str] = []

    class Fast(Scenario):
        name = "train"
        limit: ClassVar = 2.0

        def variants(self) -> Mapping[str, Callable[[Path], Mapping[str, float]]]:
            return {"one": lambda _: {"work_s": 2.0}}

        def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
            yield Bar("work", series["one"]["work_s"].median, self.limit)

        def finish(self) -> None:
            ended.append(self.name)

    class Slow(Fast):
        name = "train-slow"
        limit: ClassVar = 1.0

    found = {"trainer": Slow, "train": Fast, "train-slow": Slow}
    monkeypatch.setattr(__main__, "find_scenarios", lambda: found)
    assert __main__.main(["train", "--dir", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert ended == ["train", "train-slow"]
    assert "work: 2, at most 2: met" in told
    assert "work: 2, at most 1: NOT MET" in told
    assert Bar("rate", 0.9, 1.0, least=True).met is False


@pytest.mark.long
def test_the_two_loops_of_the_bench_of_the_trainer_make_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would count for later tests too
    from benchlib.train_loops import PlainLoop, StokerLoop, planned_batch
    from benchlib.train_run import PreparedRun, Workload

    model = {"layers": 1, "width": 16, "heads": 2, "ffn_width": 32}
    train = {"steps": 9, "global_batch": 4, "micro_batch": 2, "seq_len": 8, "model": model}
    workload = Workload({**train, "optimizer": {"lr": 1e-2}, "schedule": {"warmup_steps": 1}}, 64)
    run = PreparedRun(tmp_path / "run", workload, workload.made_up(40))
    loop = StokerLoop(run)
    plain = PlainLoop(loop.training.launch, 2)
    for number in range(3):
        loop.step()
        assert loop.training.progress.step == number + 1  # one pass of the loop is one step
        assert plain.step(planned_batch(run, number)) == pytest.approx(loop.training.progress.loss, abs=1e-5)
    loop.end()
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
