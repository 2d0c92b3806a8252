"""run.json: a run's identity, which never changes, and its progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.layout import RunLayout
from stoker.store.record import require_version
from stoker.supervise.run.origin import Origin

RunState = Literal["waiting", "running", "paused", "halted", "finished", "failed"]


BY_TRAINER = "trainer"  # why a run is finished whose external trainer ended with 0


@dataclass(frozen=True)
class Identity:
    """A run's identity, complete enough that any checkpoint can restore run.json.

    `run_id` is random, `created` UTC, `seq_len` in tokens, `dtype` that of its token files.
    """

    run: str
    run_id: str
    created: str
    seed: int
    dataset: str
    dataset_version: int
    build_id: str
    tokenizer_sha256: str
    vocab_size: int
    dtype: str
    seq_len: int
    origin: Origin | None = None  # whose parameters it began with; None: random ones

    @property
    def follows_plan(self) -> bool:
        """Whether its trainer does; an external one fixes nothing of its data."""
        return bool(self.build_id)

    @property
    def init_from(self) -> str | None:
        """`train.init_from`, as it was when the run began."""
        return None if self.origin is None else self.origin.path


@dataclass(frozen=True)
class Heldout:
    """heldout.bin: its hash, its windows of seq_len + 1 tokens, its element type and its tokens."""

    sha256: str
    windows: int
    dtype: str
    tokens: int


@dataclass(frozen=True)
class LaterHeldout(Heldout):
    """A held-out file beside heldout.bin: of longer windows, named by the phase that began with them."""

    name: str
    file: str
    seq_len: int


@dataclass(frozen=True)
class RunRecord:
    """The run's present state. `launches` counts all, `fruitless` the latest ones in a row without progress.

    `finished_with` is the digest of the file by which an external trainer finished.
    `best_step` is the furthest step ever reported or sealed, `reason` why the run failed. `halted` says why
    no launch is made until an operator resumes the run or changes its file, `paused` who asked for that.

    What the policy decided: a smaller `micro_batch`, while the file's is `micro_batch_of`;
    a rollback to make (`fork`) and a checkpoint to set aside (`suspect`), until that is done; the marks
    of the `suspects` set aside, which are not fetched again; what it has `tried` already. `watched` are the
    episodes of the loss and of the speed, by kind, that were told and have not ended.
    """

    identity: Identity
    heldout: Heldout | None = None
    heldouts: Sequence[LaterHeldout] = ()
    state: RunState = "waiting"
    finished: str | None = None
    finished_with: str | None = None
    launches: int = 0
    fruitless: int = 0
    best_step: int = 0
    reason: str | None = None
    halted: Mapping[str, Any] | None = None
    paused: Mapping[str, Any] | None = None
    micro_batch: int | None = None
    micro_batch_of: int | str | None = None
    fork: Mapping[str, Any] | None = None
    suspect: Mapping[str, Any] | None = None
    suspects: Sequence[str] = ()
    tried: Mapping[str, Any] | None = None
    watched: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def lacks_heldout(self, phase: str, seq_len: int) -> bool:
        """Whether a phase is the first one of its length, and has longer windows than the run began with.

        One whose length was changed after it began keeps its file: losses by its name stay comparable.
        """
        is_new = all(phase != one.name and seq_len != one.seq_len for one in self.heldouts)
        return bool(phase and self.heldout) and is_new and seq_len > self.identity.seq_len

    def heldouts_upto(self, seq_len: int, layout: RunLayout) -> dict[str, Any]:
        """Returns what launch.json says of later held-out windows: of those that a phase can read."""
        told = [
            {name: getattr(one, name) for name in ("name", "sha256", "windows", "seq_len")}
            | {"file": str(layout.root / one.file)}
            for one in self.heldouts
            if one.windows and one.seq_len <= seq_len
        ]
        return {"heldouts": told} if told else {}

    def held_files(self, layout: RunLayout) -> dict[Path, Heldout]:
        """Returns all held-out windows, by their files."""
        first = {layout.heldout: self.heldout} if self.heldout else {}
        return {**first, **{layout.root / one.file: one for one in self.heldouts}}

    def asked_micro_batch(self, configured: int | str) -> int | None:
        """Returns the micro-batch of a launch, None for the trainer's choice; a change of the file counts."""
        if self.micro_batch is not None and self.micro_batch_of == configured:
            return self.micro_batch
        return configured if isinstance(configured, int) else None

    @property
    def is_over(self) -> bool:
        """Whether no launch is left that could be held: a rollback or a changed file begins it again."""
        return self.state in ("finished", "failed")

    @property
    def held(self) -> str:
        """Returns why no launch may be made, for the status; "" where one may."""
        if self.halted is not None:
            return f"halted: {self.halted['reason']}; {self.halted['remedy']}"
        return f"paused by {self.paused['by']}; stoker resume continues it" if self.paused is not None else ""

    def body(self) -> dict[str, Any]:
        """Returns the record's body as in formats.md."""
        return {**self.for_checkpoints(), **{name: getattr(self, name) for name in PROGRESS}}

    def for_checkpoints(self) -> dict[str, Any]:
        """Returns the fields that a checkpoint carries: those that cannot be derived again."""
        identity = asdict(self.identity)
        if self.identity.origin is None:
            del identity["origin"]  # as records had it before there were origins
        later = {"heldouts": [*map(asdict, self.heldouts)]} if self.heldouts else {}
        return {"v": 1, **identity, "heldout": asdict(self.heldout) if self.heldout else None, **later}


_FIXED = ("identity", "heldout", "heldouts")
PROGRESS = tuple(item.name for item in fields(RunRecord) if item.name not in _FIXED)


def parse_record(body: Mapping[str, Any], where: Path | str = "run.json") -> RunRecord:
    """Returns the run record of run.json or of a checkpoint's `run_record`; DataError names the fault.

    Raises UnknownFormat, naming `where`, for an unknown version.
    """
    try:
        require_version(body, where)
        named = {item.name: body[item.name] for item in fields(Identity) if item.name != "origin"}
        identity = Identity(**named, origin=Origin(**body["origin"]) if body.get("origin") else None)
        held = body["heldout"]
        heldout = Heldout(**{item.name: held[item.name] for item in fields(Heldout)}) if held else None
        later = tuple(LaterHeldout(**one) for one in body.get("heldouts", ()))
    except (KeyError, TypeError) as problem:
        raise DataError(
            f"{where}: not a run record: {problem!r}; was it written by a newer Stoker?"
        ) from problem
    progress = {name: body[name] for name in PROGRESS if name in body}
    return RunRecord(identity, heldout, later, **{"state": "running", **progress})


def file_digest(pipeline: Pipeline) -> str:
    """Returns 64 hex digits over the settings of a pipeline file; comments and layout change none.

    Nor does a key that a newer Stoker knows, until it is given another value than its default.
    """
    return sha256(canonical_json(pipeline.model_dump(mode="json", exclude_defaults=True))).hexdigest()


def configured(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the part of a run's identity that the configuration sets."""
    train, dataset = pipeline.train, pipeline.dataset
    return {
        "seed": train.seed,
        "dataset": dataset.name,
        "dataset_version": dataset.version,
        "init_from": None if train.init_from is None else str(train.init_from),
    }


def pinned(pin: DatasetPin) -> dict[str, Any]:
    """Returns the part of a run's identity that the dataset's pin sets."""
    return {
        "build_id": pin.build_id,
        "tokenizer_sha256": pin.tokenizer.sha256,
        "dataset_version": pin.version,
    }


def refusal(pipeline: Pipeline, record: Identity, wanted: Mapping[str, Any]) -> str:
    """Returns why a run cannot continue with the `wanted` values, and the remedy; "" where it can."""
    changes = [
        f"{name} is {_as_in_yaml(getattr(record, name))} in this run and {_as_in_yaml(value)} now"
        for name, value in wanted.items()
        if value != getattr(record, name)
    ]
    if record.follows_plan != pipeline.train.follows_plan:
        whose = "one that follows the plan" if record.follows_plan else "an external trainer"
        changes = [f"train.command: {whose} has made its steps"]
    if not changes:
        return ""
    return (
        f"run {record.run} cannot continue: {'; '.join(changes)}. Put the old value back in "
        f"{pipeline.file}, or begin another run with another train.run"
    )


def _as_in_yaml(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)
