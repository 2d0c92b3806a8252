"""GPUs by NVML: the real sampler on a scripted driver, alone and below a train supervisor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.kit.loop import Waiter
from stoker.kit.process import ProcessId
from stoker.kit.workers.pool import STOP_GRACE_S
from stoker.supervise.health.liveness import StepTimes, Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.supervision.jobs import gpus as gpus_module
from stokerd.supervision.jobs.gpus import GPUS, STATE
from stokerd.supervision.jobs.runner import Jobs
from stokerd.supervision.run import Run
from support.fake_nvml import GIB, LOADED, FakeDriver
from support.sites import write_site
from support.training import make_training
from support.waiting import LONG_S

GPU_IS_LOST, NO_DRIVER, UNKNOWN = 15, 9, 999
SOON = {"EVERY_S": 0.1, "RETRY_FIRST_S": 0.1}
GET_MEMORY = "nvmlDeviceGetMemoryInfo"
# The memory of 1 GiB that only Windows counts by process, and a GPU that is full.
TIGHT = f"{80 * GIB - 1} {80 * GIB}"


@dataclass
class Ground:
    """The supervisor's part for GPUs, with a real sampler; looks at it as its loop would."""

    waiter: Waiter
    run: Any
    jobs: Jobs
    recorded: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def xids(self) -> tuple[int, ...]:
        """Those that no program brought about, as evidence of the launch."""
        return self.run.state.trainer.evidence.xids  # type: ignore[no-any-return]

    def until(self, condition: Callable[[dict[str, Any]], object], trainer: Trainer | None = None) -> Any:
        """Look until the condition holds for what is shown; returns that."""
        give_up = time.monotonic() + LONG_S
        while time.monotonic() < give_up:
            began = time.monotonic()
            if trainer is not None:
                self.run.change(trainer=trainer)
            self.jobs.hear()
            self.jobs.start_due()
            assert time.monotonic() - began < 1.0, "the loop was kept waiting"
            shown = STATE.of(self.run).shown()
            if condition(shown):
                return shown
            self.waiter.wait(0.05)
        raise AssertionError(f"not in {LONG_S:g} s: {shown} {self.recorded}")

    def said(self, word: str) -> list[dict[str, Any]]:
        """The events of a word."""
        return [fields for event, fields in self.recorded if event == word]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver with two whole cards, for whatever this test starts."""
    library.cards(2)
    for name, value in library.environ.items():
        monkeypatch.setenv(name, value)
    for name, seconds in SOON.items():
        monkeypatch.setattr(gpus_module, name, seconds)
    monkeypatch.setattr(gpus_module, "DRIVERS", (library.home,))
    return library


@pytest.fixture
def ground(driver: FakeDriver, tmp_path: Path) -> Iterator[Ground]:
    yield from grounds(tmp_path)


@pytest.fixture
def windows(driver: FakeDriver, tmp_path: Path) -> Iterator[Ground]:
    yield from grounds(tmp_path, is_wsl2=True)


def grounds(tmp_path: Path, **how: bool) -> Iterator[Ground]:
    waiter, recorded = Waiter(), list[tuple[str, dict[str, Any]]]()
    events = SimpleNamespace(record=lambda event, level="info", **fields: recorded.append((event, fields)))
    context = SimpleNamespace(layout=SimpleNamespace(state=tmp_path), waiter=waiter, events=events)
    state = RunState(Phase.TRAINING, 0.0, trainer=trainer(1))
    run = Run(cast(Any, context), state, *cast(Any, [None] * 7))
    STATE.of(run).is_wsl2 = how.get("is_wsl2", False)
    jobs = Jobs(run, {"gpus": replace(GPUS, silent_s=2.0)})
    yield Ground(waiter, run, jobs, recorded)
    jobs.stop()
    waiter.close()


def is_up(shown: dict[str, Any]) -> bool:
    return shown["up"] is True


def test_what_a_card_has_is_shown_and_what_it_lacks_is_said_once(driver: FakeDriver, ground: Ground) -> None:
    driver.cards(2, energy=None, events=None)
    shown = ground.until(is_up)
    driver.says("0.power 1000")
    shown = ground.until(lambda shown: shown["power_watts"]["0"] == 1.0)
    assert "energy_joules_total" not in shown
    assert shown["xid_total"] == {}
    assert [card["lacks"] for card in ground.said("gpus_found")[0]["cards"]] == [
        ["xid_total", "energy_joules_total"]
    ] * 2
    assert len(ground.said("gpus_found")) == 1


def test_a_function_that_the_drivers_library_does_not_have_is_a_figure_less(
    driver: FakeDriver, ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeDriver(tmp_path / "old", without=("nvmlDeviceGetRemappedRows", "nvmlEventSetCreate"))
    old.cards(1)
    for name, value in old.environ.items():
        monkeypatch.setenv(name, value)
    assert "remap_pending" not in ground.until(is_up)
    assert ground.said("gpus_found")[0]["cards"][0]["lacks"] == ["xid_total", "remap_pending"]


def test_every_xid_counts_also_one_that_repeats_the_last(driver: FakeDriver, ground: Ground) -> None:
    ground.until(is_up)
    for number in (79, 79, 31):
        driver.errs(1, number)
    shown = ground.until(lambda shown: sum(shown["xid_total"]["1"].values()) == 3)
    assert shown["xid_total"] == {
        "0": {"application": 0, "hardware": 0},
        "1": {"application": 1, "hardware": 2},
    }
    assert [(fields["gpu"], fields["xid"], fields["class"]) for fields in ground.said("gpu_xid")] == [
        ("1", 79, "hardware"),
        ("1", 31, "application"),
    ]
    assert ground.xids == (79, 79)


def test_a_card_that_is_lost_in_mid_run_is_expected_and_the_others_are_sampled(
    driver: FakeDriver, ground: Ground
) -> None:
    ground.until(is_up)
    driver.says(f"1.error {GPU_IS_LOST}", f"nvmlEventSetWait_v2 {GPU_IS_LOST}", "0.power 7000")
    shown = ground.until(lambda shown: shown["present"]["1"] is False and shown["power_watts"]["0"] == 7.0)
    assert (shown["up"], shown["expected"], shown["power_watts"]["1"]) == (True, 2, None)
    assert shown["energy_joules_total"]["1"] == 9000.0
    assert [fields["gpu"] for fields in ground.said("gpu_lost")] == ["1"]
    driver.cards(2)
    driver.says(f"0.nvmlDeviceGetPowerUsage {GPU_IS_LOST}")
    ground.until(lambda shown: list(shown["present"].values()) == [False, True])
    driver.cards(2)
    driver.errs(0, 48)
    shown = ground.until(lambda shown: all(shown["present"].values()) and shown["xid_total"]["0"]["hardware"])
    assert [fields["gpu"] for fields in ground.said("gpu_back")] == ["1", "0"]


def test_a_driver_that_hangs_holds_up_nobody_and_is_asked_again(driver: FakeDriver, ground: Ground) -> None:
    ground.until(is_up)
    driver.errs(0, 13)
    ground.until(lambda shown: shown["xid_total"]["0"]["application"])
    driver.says(f"hang {GET_MEMORY}")
    shown = ground.until(lambda shown: shown["up"] is False)
    assert (shown["memory_used_bytes"], shown["present"]) == ({"0": None, "1": None}, {"0": True, "1": True})
    driver.unsays(f"hang {GET_MEMORY}")
    shown = ground.until(is_up)
    assert shown["xid_total"]["0"]["application"] == 1
    words = [event for event, _ in ground.recorded]
    assert words == ["gpus_found", "gpu_xid", "gpu_sampler_failed", "gpu_sampler_recovered"]


def test_a_sampler_inside_a_call_of_the_driver_ends_at_once(driver: FakeDriver, ground: Ground) -> None:
    driver.says(f"hang {GET_MEMORY}")
    ground.until(lambda _: driver.hangs.exists())
    began = time.monotonic()
    ground.jobs.stop()
    assert time.monotonic() - began < STOP_GRACE_S / 2


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_machine_without_a_driver_is_told_of_once(
    driver: FakeDriver, ground: Ground, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    """Where the kernel has none, no sampler is started to find that out."""
    driver.says(f"nvmlInitWithFlags {NO_DRIVER}")
    started = list[object]()
    monkeypatch.setattr(ground.jobs, "start", lambda job: (started.append(job), Jobs.start(ground.jobs, job)))
    if not in_kernel:
        monkeypatch.setattr(gpus_module, "DRIVERS", (driver.home / "gone",))
    shown = ground.until(lambda _: ground.recorded)
    assert len(started) == in_kernel
    assert (shown["up"], shown["expected"], shown["present"]) == (None, None, {})
    assert [event for event, _ in ground.recorded] == ["gpu_driver_absent"]
    assert ground.jobs.pids == set(), "no sampler runs"


def test_a_driver_that_vanishes_takes_its_cards_with_it(driver: FakeDriver, ground: Ground) -> None:
    ground.until(is_up)
    driver.says(f"nvmlInitWithFlags {NO_DRIVER}", f"{GET_MEMORY} {NO_DRIVER}")
    shown = ground.until(lambda shown: not any(shown["present"].values()))
    assert (shown["up"], shown["expected"]) == (False, 2)
    driver.cards(2)
    ground.until(lambda shown: is_up(shown) and all(shown["present"].values()))


def test_memory_is_split_by_who_uses_it_also_where_a_process_is_gone(
    driver: FakeDriver, ground: Ground
) -> None:
    ground.until(is_up)
    (sampler,) = ground.jobs.pids
    driver.cards(1, processes=f"{sampler} 30 {os.getpid()} 12 {(1 << 22) + 1} 5")
    shown = ground.until(lambda shown: shown["process_memory_bytes"]["0"]["trainer"], trainer(os.getpid()))
    assert shown["process_memory_bytes"]["0"] == {"trainer": 30, "other": 17}


def trainer(guard: int, times: tuple[float, ...] = (), reserved: int | None = None) -> Trainer:
    view = TrainerView("l1", 0.0, 0.0, gpu_reserved_bytes=reserved)
    launch = Launch("l1", 0, None, 0, Path("x.sock"))
    return Trainer(launch, ProcessId(guard, 0), view, Stillness(0.0, 0.0), 0.0, step_times=StepTimes(times))


def test_spill_is_told_once_a_launch_and_only_on_wsl2(
    driver: FakeDriver, ground: Ground, windows: Ground
) -> None:
    slow, over = trainer(1, (*[1.0] * 99, 99.0)), trainer(1, reserved=81 * GIB)
    assert windows.until(is_up, slow)["spill"] == {"certain": False, "suspected": False}
    driver.cards(2, memory=TIGHT)
    shown = windows.until(lambda shown: shown["spill"]["suspected"], slow)
    shown = windows.until(lambda shown: shown["spill"]["certain"], over)
    assert shown["spill"] == {"certain": True, "suspected": True}
    driver.says("0.power 1000")
    windows.until(lambda shown: shown["power_watts"]["0"] == 1.0, over)
    assert [said["certainty"] for said in windows.said("gpu_spill")] == ["suspected", "certain"]
    assert ground.until(is_up, over)["spill"] == {}


SITE = f"""{LOADED}
    gpus.EVERY_S = 0.2
    object.__setattr__(gpus.GPUS, "silent_s", 2.0)
"""


def test_the_supervisor_serves_the_cards_and_goes_on_while_the_driver_hangs(
    driver: FakeDriver, shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(tmp_path, SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = make_training(shard_sets, tmp_path / "run", train__steps=100_000)
    daemon = run.start()

    def until(condition: Callable[[dict[tuple[str, ...], float]], object]) -> dict[tuple[str, ...], float]:
        give_up = time.monotonic() + LONG_S
        while not condition(found := run.metrics()):
            assert time.monotonic() < give_up, found
            time.sleep(0.05)
        return found

    try:
        found = until(lambda found: found.get(("stoker_gpu_sampler_up",)) == 1)
        expected = {
            ("stoker_gpus_expected",): 2,
            ("stoker_gpu_present", "1"): 1,
            ("stoker_gpu_info", "1", "Fake H100", "GPU-1"): 1,
            ("stoker_gpu_memory_used_bytes", "0"): 3 * GIB,
            ("stoker_gpu_memory_total_bytes", "0"): 80 * GIB,
            ("stoker_gpu_process_memory_bytes", "0", "trainer"): 0,
            ("stoker_gpu_process_memory_bytes", "0", "other"): 2 * GIB,
            ("stoker_gpu_utilization_ratio", "0"): 0.97,
            ("stoker_gpu_temperature_celsius", "0"): 71,
            ("stoker_gpu_power_watts", "0"): 412.5,
            ("stoker_gpu_energy_joules_total", "0"): 9000,
            ("stoker_gpu_sm_clock_hertz", "0"): 1.755e9,
            ("stoker_gpu_clock_event", "0", "sw_power_cap"): 1,
            ("stoker_gpu_clock_event", "0", "sw_thermal_slowdown"): 1,
            ("stoker_gpu_clock_event", "0", "idle"): 0,
            ("stoker_gpu_ecc_errors_total", "0", "corrected"): 5,
            ("stoker_gpu_ecc_errors_total", "0", "uncorrected"): 1,
            ("stoker_gpu_remap_pending", "0"): 1,
            ("stoker_gpu_xid_total", "hardware", "0"): 0,
        }
        assert {key: found.get(key) for key in expected} == expected
        assert not any(key[0] == "stoker_gpu_spill" for key in found)
        driver.says(f"hang {GET_MEMORY}")
        found = until(lambda found: found.get(("stoker_gpu_sampler_up",)) == 0)
        assert math.isnan(found["stoker_gpu_power_watts", "0"])
        at = run.last_step()
        run.wait_for_step(at + 20)
        assert len(run.events("gpu_sampler_failed")) == 1
        assert len(run.events("trainer_launched")) == 1
    finally:
        code = daemon.stop()
    assert code == 0, daemon.said()
