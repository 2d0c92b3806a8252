"""Whether all is well with a pipeline: one judgement, of what the daemons last said and what is on disk.

`stoker status` begins with it. The worst of what is found is the grade; what a person has to do comes from
the tables of event types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stoker.config.units import format_duration
from stoker.kit.event_types import event_type, filled
from stoker.observe.pace import Left
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR

Grade = Literal["well", "waits", "needs a hand", "broken"]
GRADES: tuple[Grade, ...] = get_args(Grade)  # from the best to the worst
HUNG_S = 180.0  # without a status: the units' WatchdogSec
NAMES = {
    TRAIN_SUPERVISOR: "the train supervisor",
    STAGE_SHARD: "the stage-shard loop",
    DOWNLOAD_WATCHDOG: "the download watchdog",
}
ANSWERS_S = 60.0  # that a disk has for its first answer
START = "`systemctl start stoker@NAME.target`, or `stoker run FILE`"


@dataclass(frozen=True)
class Facts:
    """What is known of a pipeline.

    `daemons` are those that it needs, as `read_status` returns them; `record` is the body of run.json, None
    before the run. `left` says when the run is done, or why that is not known; `times` of all work and disks.
    `found` is what was met besides.
    """

    name: str
    file: str
    daemons: Mapping[str, Mapping[str, Any]]
    record: Mapping[str, Any] | None = None
    left: str = ""
    times: Mapping[str, Left] = field(default_factory=dict)
    found: tuple[Finding, ...] = ()

    def body(self, daemon: str) -> Mapping[str, Any]:
        """Returns the last status of a daemon that runs; {} for any other."""
        about = self.daemons.get(daemon, {})
        body: Mapping[str, Any] = about["body"] if about.get("running") else {}
        return body


@dataclass(frozen=True)
class Finding:
    """Something that keeps a pipeline from being well: what it is, and what to do about it."""

    grade: Grade
    what: str
    do: str = ""
    event: str = ""  # whose row says what to do


@dataclass(frozen=True)
class Verdict:
    """`text` is the judgement in a line; `hands` is what needs a person, the worst first."""

    grade: Grade
    text: str
    hands: tuple[Finding, ...] = ()


def verdict(facts: Facts) -> Verdict:
    """Returns the judgement."""
    found = [_filled(each, facts) for each in (*facts.found, *(one for rule in RULES for one in rule(facts)))]
    found.sort(key=lambda each: -GRADES.index(each.grade))
    hands = tuple(each for each in found if each.grade in ("needs a hand", "broken"))
    grade = found[0].grade if found else "well"
    if grade == "broken":
        return Verdict(grade, f"broken: {hands[0].what}", hands)
    state = _state(facts, [each.what for each in found if each.grade == "waits"])
    if hands:
        count = "1 thing needs" if len(hands) == 1 else f"{len(hands)} things need"
        return Verdict(grade, f"{count} a hand; {state}", hands)
    return Verdict(grade, f"all is well, {state}" if grade == "well" else state)


def _state(facts: Facts, waits: list[str]) -> str:
    record = facts.record or {}
    if record.get("state") == "finished":
        return f"run {record.get('run', '')} is finished".replace("  ", " ")
    if waits:
        return "; ".join(waits)
    if facts.left.startswith("in "):
        return f"training is done {facts.left}"
    return f"it trains; time left {facts.left}" if facts.left else "it trains"


def _filled(found: Finding, facts: Facts) -> Finding:
    row = event_type(found.event)
    what, do = (
        filled(text, facts.file, facts.name, lambda field: f"the {field}")
        for text in (found.what, found.do or (row.do if row else ""))
    )
    return Finding(found.grade, what, do, found.event)


# The rules: each yields what it finds.


def _daemons(facts: Facts) -> Iterator[Finding]:
    is_finished = (facts.record or {}).get("state") == "finished"
    stopped = []
    for daemon, about in facts.daemons.items():
        name, body = NAMES[daemon], about["body"]
        log = f"`journalctl -u 'stoker-{daemon.replace('_', '-')}@NAME'` shows its last lines"
        if about["running"]:
            if (silent_s := about.get("silent_s", 0.0)) > HUNG_S:
                what = f"{name} has been silent for {format_duration(silent_s)}"
                yield Finding("broken", what, f"{log}; fix a disk that does not respond, or restart it")
        elif (code := body.get("exit_code", 0 if not body else None)) is None:
            yield Finding("broken", f"{name} was killed and does not run", f"{log}; {START}")
        elif code:
            yield Finding("broken", f"{name} ended with exit code {code}", event="daemon_failed")
        else:
            stopped.append(name)
    if len(stopped) == len(facts.daemons) and not is_finished:
        yield Finding("waits", f"nothing runs; start it with {START}")
    elif stopped and not is_finished:
        yield Finding("waits", f"{' and '.join(stopped)} {'does' if len(stopped) == 1 else 'do'} not run")


def _run(facts: Facts) -> Iterator[Finding]:
    record, body = facts.record or {}, facts.body(TRAIN_SUPERVISOR)
    if halted := record.get("halted"):
        yield Finding("broken", f"the run is halted: {halted['reason']}", halted["remedy"], "run_halted")
    elif record.get("state") == "failed":
        yield Finding("broken", f"the run failed: {record.get('reason')}", event="run_failed")
    elif paused := record.get("paused"):
        yield Finding("waits", f"training is paused by {paused['by']}; `stoker resume FILE` continues it")
    elif body.get("waiting_for"):
        eta_s = facts.body(STAGE_SHARD).get("eta_s")
        soon = "" if eta_s is None else f", about {format_duration(eta_s)}"
        yield Finding("waits", f"training waits: {body['waiting_for']}{soon}")
    elif body.get("next_launch_s"):
        yield Finding("waits", f"the next launch is in {format_duration(body['next_launch_s'])}")
    elif body and not record and body.get("run_state") in {None, "waiting"}:
        yield Finding("waits", f"the run has not begun: {body.get('doing') or 'starting'}")
    if trouble := body.get("trouble"):
        word = "checkpoint_refused" if "is not sealed" in trouble else "checkpoint_failed"
        yield Finding("needs a hand", trouble, event=word)


# Where a hand is needed: the daemon, what its status then has, the words for it, and the event that says what
# to do.
HANDS = (
    (DOWNLOAD_WATCHDOG, "trouble", "the source cannot be used: {}", "source_unavailable"),
    (DOWNLOAD_WATCHDOG, "files.given_up", "files that could not be fetched: {:,}", "download_given_up"),
    (DOWNLOAD_WATCHDOG, "files.rotten", "source files that changed by themselves: {:,}", "source_rotten"),
    (STAGE_SHARD, "disks.hot.trouble", "the hot disk: {}", "list_failed"),
    (STAGE_SHARD, "disks.warm.trouble", "the warm disk: {}", "warm_unavailable"),
    (STAGE_SHARD, "is_paused.memory", "memory is short, and no new work starts", "memory_paused"),
    (STAGE_SHARD, "is_paused.disk_state", "the state disk is full", "state_disk_full"),
    (STAGE_SHARD, "is_paused.disk_hot", "the hot disk is full", "disk_full"),
    (STAGE_SHARD, "is_paused.disk_warm", "the warm disk is full", "disk_full"),
    (STAGE_SHARD, "stuck", "killed workers that hang in the kernel: {}", "worker_stuck"),
    (STAGE_SHARD, "quarantine.files.parquet", "source files in quarantine: {:,}", "source_quarantined"),
    (TRAIN_SUPERVISOR, "figures.fruitless", "launches in a row without progress: {}", "trainer_exited"),
    (TRAIN_SUPERVISOR, "watched.diverged", "the loss diverges", "loss_diverged"),
    (TRAIN_SUPERVISOR, "watched.plateau", "the loss hardly improves", "loss_plateau"),
    (TRAIN_SUPERVISOR, "watched.slow", "training is slower than usual", "training_slow"),
    (TRAIN_SUPERVISOR, "unread", "no step is recognised in the trainer's output", "steps_unread"),
    (TRAIN_SUPERVISOR, "mirror.trouble", "the mirror: {}", "mirror_failed"),
    (TRAIN_SUPERVISOR, "gpus.up", "the NVIDIA driver does not answer", "gpu_sampler_failed"),
    (TRAIN_SUPERVISOR, "gpus.present", "GPUs are gone from the bus: {}", "gpu_lost"),
)
# What is said of a value where not the value itself is, if anything.
SAID: Mapping[str, Callable[[Any], Any]] = {
    "stuck": ", ".join,
    "figures.fruitless": lambda launches: int(launches) if launches > 1 else 0,
    "gpus.up": lambda is_up: not is_up,
    "gpus.present": lambda cards: sum(not is_there for is_there in cards.values()),
}


def _hands(facts: Facts) -> Iterator[Finding]:
    for daemon, path, words, event in HANDS:
        value: Any = (body := facts.body(daemon))
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        is_early = path.startswith("disks.") and body.get("uptime_s", ANSWERS_S) < ANSWERS_S
        with contextlib.suppress(TypeError, ValueError, AttributeError):  # what another version wrote
            value = SAID[path](value) if value is not None and path in SAID else value
            if value and not is_early:
                yield Finding("needs a hand", words.format(value), event=event)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (_daemons, _run, _hands)
