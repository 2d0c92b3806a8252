"""Whether a trainer is alive: what counts as progress, in which phase for how long, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.config.schema import PhaseLimits, Supervise
from stoker.kit.process import ProcessId
from stoker.supervise import actions as do
from stoker.supervise.decide import health
from stoker.supervise.health.liveness import Stillness, judge
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.trainer import Trainer

POLICY = Supervise(hang_limit=900.0)
HANG_S = POLICY.hang_limit
DAY_S = 86_400
Script = Iterator[tuple[float, str]]


@pytest.mark.parametrize(
    ("phase", "quiet_s", "still_s", "p99_s", "state"),
    [
        ("train", 5, 0, 1.0, "alive"),
        ("train", 25, 0, 1.0, "suspect"),
        ("train", 25, 0, 6.0, "alive"),  # 5 x 6 s
        ("train", 70, 70, 1.0, "stop"),
        ("train", 70, 3, 1.0, "suspect"),  # silent, but its CPU time grows
        ("train", 70, 70, 8.0, "suspect"),  # 10 x 8 s
        ("train", 460, 0, 100.0, "suspect"),  # at half the limit, however slow the steps are
        ("train", 900, 0, 1.0, "stop"),
        ("load", 440, 440, None, "alive"),
        ("load", 800, 800, None, "suspect"),
        ("load", 900, 900, None, "stop"),
        ("compile", 1700, 0, None, "suspect"),
        ("compile", 1800, 0, None, "stop"),
        ("checkpoint", 120, 120, 0.1, "alive"),
        ("eval", 900, 0, 0.1, "stop"),
        ("wait-data", 900, 0, 0.1, "stop"),
    ],
)
def test_a_time_without_progress_is_judged_by_phase_step_time_and_work(
    phase: str, quiet_s: float, still_s: float, p99_s: float | None, state: str
) -> None:
    assert judge(phase, quiet_s=quiet_s, still_s=still_s, p99_s=p99_s, policy=POLICY)[0] == state


def test_a_short_hang_limit_is_obeyed_and_suspected_before() -> None:
    short = Supervise(hang_limit=5.0)
    assert judge("train", quiet_s=6, still_s=0, p99_s=0.1, policy=short)[0] == "stop"
    assert judge("train", quiet_s=3, still_s=0, p99_s=0.1, policy=short)[0] == "suspect"


OWN = {"load": 100.0, "compile": 5000.0, "eval": 200.0, "checkpoint": 2000.0, "wait_data": 300.0}


@pytest.mark.parametrize(("phase", "limit_s"), [(name.replace("_", "-"), own) for name, own in OWN.items()])
def test_a_phase_with_a_limit_of_its_own_has_it_instead_of_the_hang_limit(phase: str, limit_s: float) -> None:
    own = Supervise(hang_limit=900.0, limits=PhaseLimits(**OWN))
    judged = [judge(phase, quiet_s=limit_s + late, still_s=0, p99_s=1.0, policy=own)[0] for late in (-1, 0)]
    assert judged == ["suspect", "stop"]
    assert judge("train", quiet_s=899, still_s=0, p99_s=1.0, policy=own)[0] == "suspect"  # as ever


def test_how_long_a_step_may_be_idle_can_be_set() -> None:
    patient = Supervise(limits=PhaseLimits(idle=240.0))
    verdicts = [
        judge("train", quiet_s=s, still_s=s, p99_s=1.0, policy=patient)[0] for s in (79, 80, 239, 240)
    ]
    assert verdicts == ["alive", "suspect", "suspect", "stop"]


def begun() -> Script:
    yield 0, "PHASE=load"
    for step in range(20):
        yield 1, f"PHASE=train\nSTEP={step}"


def every(seconds: float, upto_s: float, *said: str) -> Script:
    """The words in turn, again and again."""
    for turn in range(int(upto_s / seconds)):
        yield seconds, said[turn % len(said)]


def stopped_after(script: Script, *, lacks_data: bool = False) -> float | None:
    """Seconds from the first word until the supervisor stops the trainer, which works all the time."""
    launch = Launch("a", 0, None, 0, Path("socket"))
    now, trainer = 0.0, Trainer(launch, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)

    def is_stopped() -> bool:
        awake = trainer.believed() if lacks_data and trainer.view.phase == "wait-data" else trainer
        actions = health(replace(awake, stillness=Stillness(now, now)), POLICY, now)
        return any(isinstance(action, do.StopTrainer) for action in actions)

    for seconds, said in script:
        until = now + seconds
        while now < until:  # the supervisor looks more often than the trainer speaks
            now = min(until, now + 10.0)
            if is_stopped():
                return now
        trainer = trainer.after_words([f"LAUNCH=a\n{said}".encode()], now)
        if is_stopped():
            return now
        if lacks_data and trainer.view.phase == "wait-data":
            trainer = trainer.believed()
    return None


def counted(phase: str, seconds: float, upto_s: float) -> Script:
    yield 1, f"PHASE={phase}"
    for turn in range(int(upto_s / seconds)):
        yield seconds, f"PHASE={phase}\nSTEP=19\nDONE={turn + 1}"


ALIVE: dict[str, Script] = {
    "a long load": iter([(0, "PHASE=load"), (890, "PHASE=train\nSTEP=1")]),
    "a long compilation": iter([(1, "PHASE=compile"), (1790, "PHASE=train\nSTEP=0"), (60, "STEP=1")]),
    "an evaluation of a day": counted("eval", 300, DAY_S),
    "a save of a day": counted("checkpoint", 800, DAY_S),
    "an fsync of minutes": iter([(1, "PHASE=checkpoint"), (890, "PHASE=train")]),
    "pauses between all steps": (
        (seconds, f"PHASE={phase}\nSTEP={step}")
        for step in range(20, 60)
        for phase, seconds in (("train", 700), ("eval", 8), ("checkpoint", 600))
    ),
    "a save tried again": iter(
        [*counted("checkpoint", 300, 1500), (1, "PHASE=train\nSTEP=20"), *counted("checkpoint", 300, 1500)]
    ),
}
DEAD: dict[str, tuple[Script, float]] = {
    "no word": (iter([(DAY_S, "")]), HANG_S),
    "a heartbeat that says train": (every(10, DAY_S, "PHASE=train\nSTEP=19"), HANG_S),
    "a heartbeat that says eval": (every(10, DAY_S, "PHASE=eval\nSTEP=19"), HANG_S),
    "a heartbeat with as much done as before": (every(10, DAY_S, "PHASE=eval\nDONE=7"), HANG_S),
    "done in a phase that counts nothing": (
        ((1.0, f"PHASE=train\nDONE={turn}") for turn in range(DAY_S)),
        HANG_S,
    ),
    "from phase to phase": (every(10, DAY_S, "PHASE=eval", "PHASE=train"), 2 * HANG_S),
    "from phase to phase with done": (
        every(10, DAY_S, "PHASE=eval\nDONE=3", "PHASE=checkpoint\nDONE=9", "PHASE=train"),
        3 * HANG_S,
    ),
    "a step that goes to and fro": (every(10, DAY_S, "PHASE=train\nSTEP=18", "STEP=19"), HANG_S),
    "another rank that lags": (every(10, DAY_S, "PHASE=train\nSTEP=19", "RANK=1\nSTEP=18"), HANG_S),
    "a wait for a batch that is there": (every(10, DAY_S, "PHASE=wait-data\nSTEP=19"), HANG_S),
}


@pytest.mark.parametrize("why", ALIVE)
def test_a_pause_beyond_the_limits_of_training_is_no_hang(why: str) -> None:
    assert stopped_after(ALIVE[why] if why.startswith("a long") else _after_steps(ALIVE[why])) is None


@pytest.mark.parametrize("why", DEAD)
def test_words_alone_keep_no_dead_trainer_alive(why: str) -> None:
    script, limit_s = DEAD[why]
    stopped_s = stopped_after(_after_steps(script))
    assert stopped_s is not None and stopped_s <= 20 + limit_s + 20


def _after_steps(script: Script) -> Script:
    yield from begun()
    yield from script


def test_a_wait_for_data_is_believed_while_the_plan_lacks_a_batch_and_the_trainer_tells_of_it() -> None:
    telling = _after_steps(every(60, DAY_S, "PHASE=wait-data\nSTEP=19"))
    assert stopped_after(telling, lacks_data=True) is None
    silent = _after_steps(iter([(1, "PHASE=wait-data"), (DAY_S, "")]))
    assert stopped_after(silent, lacks_data=True) == pytest.approx(20 + HANG_S, abs=10)


def read(reads_output: bool = True) -> Trainer:
    launch = Launch("a", 0, None, 0, Path("socket"), reads_output=reads_output)
    return Trainer(launch, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)


def verdict(trainer: Trainer, now: float, *, worked_at: float) -> str:
    for action in health(replace(trainer, stillness=Stillness(now, worked_at)), POLICY, now):
        return "stop" if isinstance(action, do.StopTrainer) else "suspect"
    return "alive"


def test_a_trainer_that_is_known_by_its_output_alone_has_the_hard_limit_alone() -> None:
    trainer = read()
    assert verdict(trainer, DAY_S, worked_at=DAY_S) == "alive", "no step is known: at work is all there is"
    assert [verdict(trainer, now, worked_at=0) for now in (449, 899, HANG_S)] == ["alive", "suspect", "stop"]
    words = [f"LAUNCH=a\nPHASE=train\nSTEP={step}".encode() for step in range(1, 9)]
    trainer = trainer.after_output(words[:1], 1.0, has_moved=True, read_as="nanoGPT")
    trainer = trainer.after_output(words[1:], 8.0, has_moved=True, read_as="nanoGPT")
    assert (trainer.step, trainer.view.phase, trainer.is_read, trainer.read_as) == (
        8,
        "train",
        True,
        "nanoGPT",
    )
    assert trainer.step_times.times == (pytest.approx(1.0),), (
        "steps read at once took no time from each to each"
    )
    # Idle for an hour of a look, ten times its steps' time, and no p99 counts.
    assert [verdict(trainer, 8 + s, worked_at=0) for s in (440, 451, HANG_S)] == ["alive", "suspect", "stop"]
    assert verdict(trainer, 8 + HANG_S, worked_at=8 + HANG_S) == "stop", "busy, but without a step"
    moved = trainer.after_output([], 800.0, has_moved=True)
    assert verdict(moved, 8 + HANG_S, worked_at=0) == "alive", "a bar that gets on is progress"


def test_a_trainer_that_tells_its_steps_is_judged_by_them_and_not_read_any_more() -> None:
    trainer = read().after_output([b"LAUNCH=a\nPHASE=train\nSTEP=1"], 1.0, has_moved=True)
    told = trainer.after_words([b"LAUNCH=a\nPHASE=load\nPID=7\nSTACKS=12"], 2.0)
    assert told.is_read, "it has told no step"
    told = told.after_words([b"LAUNCH=a\nSTEP=2", b"LAUNCH=a\nSTEP=3"], 3.0)
    assert (told.is_read, told.view.phase) == (False, "train")
    assert verdict(told, 3 + 70, worked_at=3) == "stop"
    assert not read(reads_output=False).is_read


def test_who_never_tells_a_phase_trains_from_the_first_step_on() -> None:
    trainer = read().after_words([b"LAUNCH=a\nRANK=1\nSTEP=1", b"LAUNCH=a\nLOSS=2.5"], 1.0)
    assert trainer.view.phase == "load"
    assert trainer.after_words([b"LAUNCH=a\nSTEP=2"], 2.0).view.phase == "train"
    assert trainer.after_words([b"LAUNCH=a\nPHASE=load\nSTEP=2"], 2.0).view.phase == "load"


def test_a_machine_that_slept_is_no_reason_to_stop() -> None:
    launch = Launch("a", 0, None, 0, Path("socket"))
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)
    trainer = trainer.after_words([b"LAUNCH=a\nPHASE=eval", b"LAUNCH=a\nPHASE=train\nSTEP=1"], 1.0)
    trainer = trainer.after_words([b"LAUNCH=a\nPHASE=eval"], 2.0).after_words(
        [b"LAUNCH=a\nPHASE=train"], 500.0
    )
    assert not health(trainer.excused(9000.0), POLICY, 9001.0)
