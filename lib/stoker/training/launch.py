"""Reads the settings of a launch from launch.json and the STOKER_* environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stoker.store.errors import ConfigError, UsageError
from stoker.store.layout import RunLayout
from stoker.store.record import read_record
from stoker.supervise.run.origin import Origin


@dataclass(frozen=True)
class Heldout:
    file: Path
    sha256: str  # which the file must have
    windows: int  # of seq_len + 1 tokens each
    seq_len: int
    name: str = ""  # that of the phase which a later file begins with


@dataclass(frozen=True)
class Launch:
    """The settings of one launch of the trainer."""

    id: str
    run: str
    run_id: str
    layout: RunLayout
    plan: Path
    timelines: Path
    resume_from: Path | None  # a checkpoint proven before the launch; None: begin at step 0
    origin: Origin | None  # whose parameters the run began with at step 0; None: random ones
    timeline: int
    config_digest: str
    seed: int
    steps: int  # the last step of the run
    until: int | None  # the step, before the last, at which this launch stops and seals
    seq_len: int  # of future plan entries; each entry of the plan has its own
    global_batch: int  # in windows
    micro_batch: int | None  # in windows; None: the trainer chooses
    compile: str  # "none", "blocks", or "auto": as the run did
    recompute: str  # "none" or "blocks"
    precision: str
    deterministic: bool
    threads: int | None
    numerics: Mapping[str, Any] | None  # the run's own (see `numerics`); None: a new run resolves them
    is_replay: bool  # it uses exactly these numerics, or fails
    eot: int  # the end-of-text token; it begins each document
    model: Mapping[str, Any]
    rope: Mapping[str, Any] | None  # of this phase; None: as `model` has it
    phase: str | None  # "": before the first one; None: the run has no phases
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]
    ema: Mapping[str, Any] | None  # decay, every, from_step of the averaged weights
    evaluate_every: int | None
    patience: int | None  # evaluations without a gain that end the run
    checkpoint_every_s: float | None
    checkpoint_every_steps: int | None
    checkpoint_busy: str  # "wait" for a save in flight, or "skip" the save that is due
    cache: Path  # of compiled code
    shards_root: Path
    tokenizer_file: Path
    vocab_size: int
    dtype: str
    heldout: Heldout | None
    heldouts: tuple[Heldout, ...]  # later ones, of longer windows
    run_record: Mapping[str, Any]


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Returns the launch that the environment names; by hand, STOKER_RUN_DIR alone starts a trainer.

    Raises UsageError without STOKER_RUN_DIR, and ConfigError for a launch record that is missing, belongs to
    another launch or lacks a field.
    """
    if not environ.get("STOKER_RUN_DIR"):
        raise UsageError(
            "STOKER_RUN_DIR is not set: the trainer is started by the train supervisor; by hand, set it "
            "to a run's directory (<state>/runs/<run>) that has a launch.json"
        )
    layout = RunLayout(Path(environ["STOKER_RUN_DIR"]).absolute())
    try:
        record = read_record(layout.launch)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"{layout.launch} is not there; the train supervisor writes it before a launch"
        ) from problem
    wanted = environ.get("STOKER_LAUNCH") or record.get("launch")
    if record.get("launch") != wanted:
        raise ConfigError(
            f"{layout.launch} is of launch {record.get('launch')}, not of {wanted} (STOKER_LAUNCH)"
        )
    try:
        return _parse(record, layout, environ)
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{layout.launch}: not a launch record: {problem!r}") from problem


def _parse(record: Mapping[str, Any], layout: RunLayout, environ: Mapping[str, str]) -> Launch:
    resume, held = environ.get("STOKER_RESUME_FROM"), record["heldout"]
    evaluate, checkpoint = record["evaluate"] or {}, record["checkpoint"]
    parsed = {
        "id": record["launch"],
        "numerics": record.get("numerics"),
        "is_replay": record.get("replay", False),
        "eot": record.get("eot", 0),
        "layout": layout,
        "plan": Path(environ.get("STOKER_PLAN") or layout.plan),
        "timelines": Path(environ.get("STOKER_TIMELINES") or layout.timelines),
        "resume_from": Path(resume) if resume else None,
        "origin": Origin(**record["origin"]) if record.get("origin") else None,
        "until": record.get("until"),
        "ema": record.get("ema"),
        "rope": record.get("rope"),
        "phase": record.get("phase"),
        "evaluate_every": evaluate.get("every_steps"),
        "patience": evaluate.get("patience"),
        "checkpoint_every_s": checkpoint["every_s"],
        "checkpoint_every_steps": checkpoint["every_steps"],
        "checkpoint_busy": checkpoint.get("busy", "wait"),
        "cache": Path(record.get("cache") or layout.root / "cache"),
        "shards_root": Path(record["shards_root"]),
        "tokenizer_file": Path(record["tokenizer_file"]),
        # Without windows the validation data is shorter than one.
        "heldout": _heldout(held) if held and held["windows"] else None,
        "heldouts": tuple(map(_heldout, record.get("heldouts", ()))),
    }
    as_written = {field.name for field in fields(Launch)} - parsed.keys()
    return Launch(**parsed, **{name: record[name] for name in as_written})


def _heldout(held: Mapping[str, Any]) -> Heldout:
    return Heldout(**{**held, "file": Path(held["file"])})
