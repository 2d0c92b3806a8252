"""A launch as data: launch.json, the trainer's command and environment, and the log launches.jsonl.

The supervisor appends to launches.jsonl before each launch, and again, with the same id, when the trainer
makes further steps with other numerics. A committed step has the settings of the last line of its history
that began before it; `stoker replay` and the audit use them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.config.schema_train import Schedule, Train
from stoker.corpus.records.dataset import DatasetPin
from stoker.kit.exec import DAEMON_VARIABLES
from stoker.plan.timelines import Timelines, ancestry
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog, read_entries
from stoker.supervise.run.numerics_record import OF_A_PHASE
from stoker.supervise.run.record import Identity, RunRecord

# Of so many cores one may be idle between the saves. With fewer a save that takes from training costs less:
# on 2 cores about a second for each GB of state, which a core left to the sealer would halve for good.
MANY_CORES = 16
TRAINER = (sys.executable, "-m", "stoker.training.trainer")


@dataclass(frozen=True)
class Launch:
    """A launch of a run: its id, the checkpoint it resumes from (None: the beginning) and its timeline."""

    launch: str
    timeline: int
    resume_from: Path | None
    resume_step: int
    notify_socket: Path
    until: int | None = None  # a step to stop at, before the horizon
    reads_output: bool = False  # its steps are read of its output, until it tells them itself


def passes_a_phase(launch: Launch, train: Train) -> bool:
    """Returns whether a launch would go past the start of a phase, which the file did not have before."""
    later = [phase.start for phase in train.settings if phase.start > launch.resume_step]
    return bool(later) and (launch.until is None or launch.until > later[0])


def launch_body(
    launch: Launch,
    pipeline: Pipeline,
    pin: DatasetPin | None,
    record: RunRecord,
    *,
    steps: int | None = None,
    numerics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns launch.json's body: the trainer's input besides the plan and the checkpoint it resumes from.

    `steps` is the horizon from the resume step (default: as configured). `seq_len` is that of its phase;
    windows that are read have that of their plan entry, and the held-out windows have their own. `numerics`
    are those of the checkpoint to resume from, None for a new run.
    """
    if pin is None:
        raise DataError(f"{pipeline.layout.datasets} has no pin any more; start the stage-shard loop")
    train, identity, held = pipeline.train, record.identity, record.heldout
    steps = train.horizon if steps is None else steps
    model = train.model.body()
    layout, phase = pipeline.layout.run(identity.run), train.at(launch.resume_step)
    if numerics and phase.name and launch.resume_step == phase.start:
        # What fitted the phase before may not fit this one: the trainer chooses anew, as a new run's does.
        numerics = {name: value for name, value in numerics.items() if name not in OF_A_PHASE}
    return {
        **_every_body(launch, pipeline, record),
        "config_digest": config_digest(identity, model, train.optimizer.name),
        "seed": identity.seed,
        "steps": steps,
        "until": launch.until,
        **({"phase": phase.name} if train.phases else {}),
        "seq_len": phase.seq_len,
        "global_batch": phase.global_batch,
        "model": model,
        "optimizer": train.optimizer.model_dump(mode="json"),
        "schedule": schedule_body(train.schedule, steps),
        **_ema_body(train),
        "evaluate": train.evaluate.model_dump(mode="json"),
        "precision": train.precision,
        "deterministic": train.deterministic,
        "numerics": numerics,
        "compile": train.compile,
        "recompute": phase.recompute,
        "micro_batch": record.asked_micro_batch(phase.micro_batch),
        "threads": threads(len(os.sched_getaffinity(0))),
        "checkpoint": {
            "every_s": train.checkpoint.every,
            "every_steps": train.checkpoint.every_steps,
            "busy": train.checkpoint.busy,
        },
        "cache": str(pipeline.layout.cache),
        "shards_root": str(pipeline.hot_layout.shards(identity.dataset)),
        "tokenizer_file": str(pipeline.layout.datasets / pin.tokenizer.file),
        "vocab_size": identity.vocab_size,
        "dtype": identity.dtype,
        "eot": pin.tokenizer.eot,
        "heldout": held
        and {
            "file": str(layout.heldout),
            "sha256": held.sha256,
            "windows": held.windows,
            "seq_len": identity.seq_len,
        },
        "origin": identity.origin and asdict(identity.origin),
        **({"rope": phase.rope.body()} if phase.rope else {}),
        **record.heldouts_upto(phase.seq_len, layout),
    }


def external_body(launch: Launch, pipeline: Pipeline, _: Any, record: RunRecord, **__: Any) -> dict[str, Any]:
    """Returns launch.json's body for an external trainer, which reads nothing of it.

    Its command is left out: it may hold a password.
    """
    return {
        **_every_body(launch, pipeline, record),
        "config_digest": config_digest(record.identity, {}, ""),
        "steps": pipeline.train.steps,
        "until": None,
        "micro_batch": record.micro_batch,
        "numerics": None,
    }


def _every_body(launch: Launch, pipeline: Pipeline, record: RunRecord) -> dict[str, Any]:
    return {
        "v": 1,
        "launch": launch.launch,
        "run": record.identity.run,
        "run_id": record.identity.run_id,
        "pipeline": pipeline.name,
        "timeline": launch.timeline,
        "run_record": record.for_checkpoints(),
    }


def schedule_body(schedule: Schedule, steps: int) -> dict[str, Any]:
    """Returns a launch's schedule for a horizon; that of wsd with the last step before its decay."""
    body = schedule.model_dump(mode="json", exclude_none=True)
    begins = schedule.decay_begins(steps)
    return body if begins is None else {**body, "decay_begins": begins}


def _ema_body(train: Train) -> dict[str, Any]:
    """Returns what a launch is told of the averaged weights; {} without them."""
    if train.ema is None:
        return {}
    begins = train.schedule.warmup_steps if train.ema.from_step is None else train.ema.from_step
    return {"ema": train.ema.model_dump(mode="json") | {"from_step": begins}}


def threads(cores: int) -> int:
    """Returns the trainer's threads on so many cores; the sealer has one where that costs little."""
    return cores - (cores >= MANY_CORES)


def config_digest(identity: Identity, model: Mapping[str, Any], optimizer: str) -> str:
    """Returns 64 hex digits over the settings that a checkpoint must share with a launch resuming from it.

    The horizon, the batch, the learning rate and the like may change at any checkpoint, the sequence length
    at any entry of the plan.
    """
    fields = {
        "run_id": identity.run_id,
        "seed": identity.seed,
        "build_id": identity.build_id,
        "tokenizer_sha256": identity.tokenizer_sha256,
        "model": model,
        "optimizer": optimizer,
    }
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def trainer_environment(environ: Mapping[str, str], launch: Launch, layout: RunLayout) -> dict[str, str]:
    """Returns the trainer's environment: without the daemon's variables, with the protocol's."""
    # A trainer with the daemon's variables would notify systemd in the supervisor's name.
    kept = {name: value for name, value in environ.items() if name not in DAEMON_VARIABLES}
    return {
        **kept,
        "PYTHONSAFEPATH": "1",  # a file in the working directory must not replace a module
        "PYTHONUNBUFFERED": "1",  # what it prints last before it is killed is there
        "STOKER_NOTIFY_SOCKET": str(launch.notify_socket),
        "STOKER_LAUNCH": launch.launch,
        "STOKER_RUN_DIR": str(layout.root),
        "STOKER_RESUME_FROM": str(launch.resume_from or ""),
        "STOKER_PLAN": str(layout.plan),
        "STOKER_TIMELINES": str(layout.timelines),
    }


LEFT_OUT = ("phase", "rope", "ema")  # where they are off
SETTINGS = (
    *LEFT_OUT,
    "steps",
    "global_batch",
    "seq_len",
    "micro_batch",
    "numerics",
    "precision",
    "deterministic",
    "threads",
    "model",
    "optimizer",
    "schedule",
    "evaluate",
)


def phase_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Returns whether a phase begins with a launch of these settings after one of those, and what changes.

    None where neither is of a phase, and where the phase goes on as it was.
    """
    was, name = before.get("phase", ""), now.get("phase", "")
    changes = [
        f"{key} {before.get(key, 'none')} -> {now.get(key, 'none')}"
        for key in ("seq_len", "rope", "global_batch")
        if before.get(key) != now.get(key)
    ]
    begins = bool(name) and name != was
    return (begins, "; ".join(changes)) if begins or ((was or name) and changes) else None


@dataclass(frozen=True)
class Launched:
    """A line of the log: from this step of the timeline on, a launch had these settings (see SETTINGS)."""

    launch: str
    timeline: int
    resume_step: int
    settings: Mapping[str, Any]
    time: str


def launched_body(launch_body: Mapping[str, Any], *, resume_step: int, time: str) -> dict[str, Any]:
    """Returns the log line for a launch whose launch.json has this body."""
    return {
        "v": 1,
        "launch": launch_body["launch"],
        "timeline": launch_body["timeline"],
        "resume_step": resume_step,
        "settings": {name: launch_body[name] for name in SETTINGS if name in launch_body},
        "time": time,
    }


def note_launch(path: Path, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Appends a launch durably; returns the log's damage, which prevents no launch."""
    with contextlib.closing(ChainedLog(path)) as log:
        log.append(body)
        return log.damage


def read_launches(path: Path) -> tuple[list[Launched], tuple[str, ...]]:
    """Returns the launches in the order written, and the log's damage; empty for a missing file."""
    return read_entries(path, _parse, "launch")


def ema_change(launches: Sequence[Launched]) -> dict[str, Any]:
    """Returns what the last launch changed in `train.ema`, as an event's words; {} for nothing."""
    emas = [one.settings.get("ema") for one in launches[-2:]]
    if len(emas) < 2 or emas[0] == emas[1]:
        return {}
    change = "changed" if all(emas) else "begun" if emas[1] else "ended"
    return {"step": launches[-1].resume_step, "change": change, **(emas[1] or {})}


def last_begun(launches: Sequence[Launched]) -> int:
    """Returns the step that the last launch began at; 0 without any."""
    return next((one.resume_step for one in launches if one.launch == launches[-1].launch), 0)


class Makers:
    """Finds the launch that made a committed step (from 1) of a timeline's history (default: the current's).

    A later launch repeats the steps after its beginning; `of` takes a few comparisons.
    """

    def __init__(
        self, launches: Iterable[Launched], timelines: Timelines, timeline: int | None = None
    ) -> None:
        self._upto = dict(ancestry(timelines, timeline))
        self._launches: list[Launched] = []  # by first step, each valid up to the next
        for one in launches:
            if one.timeline not in self._upto:
                continue
            while self._launches and self._launches[-1].resume_step >= one.resume_step:
                self._launches.pop()
            self._launches.append(one)
        self._begun = [one.resume_step for one in self._launches]

    def of(self, step: int) -> Launched | None:
        """Returns the launch that made a step; None where the log does not have it."""
        place = bisect_left(self._begun, step) - 1
        if place < 0:
            return None
        upto = self._upto[self._launches[place].timeline]
        return self._launches[place] if upto is None or step <= upto else None


def _parse(body: Mapping[str, Any]) -> Launched:
    timeline, step, settings = body["timeline"], body["resume_step"], body["settings"]
    if type(timeline) is not int or type(step) is not int:
        raise ValueError("timeline or resume_step is no number")
    return Launched(str(body["launch"]), timeline, step, dict(settings), str(body["time"]))
