"""run.json: what a run is, which never changes, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.store.errors import DataError
from stoker.store.parsing import require_version

RunState = Literal["waiting", "running", "finished", "failed"]


@dataclass(frozen=True)
class Identity:
    """What makes a run this run; with it every checkpoint can give run.json back.

    `run_id` is random, `created` UTC, `seq_len` in tokens, `dtype` the one of its token files.
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


@dataclass(frozen=True)
class Heldout:
    """heldout.bin: its hash, its windows of seq_len + 1 tokens, its element type and its tokens."""

    sha256: str
    windows: int
    dtype: str
    tokens: int


PROGRESS = ("state", "finished", "launches", "fruitless", "best_step", "reason")


@dataclass(frozen=True)
class RunRecord:
    """The run now. `launches` counts all, `fruitless` the last ones in a row that got nowhere.

    `best_step` is the furthest step ever reported or sealed, `reason` why the run failed.
    """

    identity: Identity
    heldout: Heldout | None = None
    state: RunState = "waiting"
    finished: str | None = None
    launches: int = 0
    fruitless: int = 0
    best_step: int = 0
    reason: str | None = None

    def body(self) -> dict[str, Any]:
        """The record's body as formats.md has it."""
        return {**self.for_checkpoints(), **{name: getattr(self, name) for name in PROGRESS}}

    def for_checkpoints(self) -> dict[str, Any]:
        """What a checkpoint carries of it: the part that cannot be found out again."""
        return {"v": 1, **asdict(self.identity), "heldout": asdict(self.heldout) if self.heldout else None}


def parse_record(body: Mapping[str, Any], where: Path | str = "run.json") -> RunRecord:
    """A run record from run.json or a checkpoint's `run_record`; DataError names what is wrong.

    Raises UnknownFormat, naming `where`, for a version that is not known here.
    """
    try:
        require_version(body, where)
        identity = Identity(**{item.name: body[item.name] for item in fields(Identity)})
        held = body["heldout"]
        heldout = Heldout(**{item.name: held[item.name] for item in fields(Heldout)}) if held else None
    except (KeyError, TypeError) as problem:
        raise DataError(
            f"{where}: not a run record: {problem!r}; was it written by a newer Stoker?"
        ) from problem
    progress = {name: body[name] for name in PROGRESS if name in body}
    return RunRecord(identity, heldout, **{"state": "running", **progress})


def configured(pipeline: Pipeline) -> dict[str, Any]:
    """What of a run's identity the configuration says."""
    train, dataset = pipeline.train, pipeline.dataset
    return {"seed": train.seed, "dataset": dataset.name, "dataset_version": dataset.version}


def pinned(pin: DatasetPin) -> dict[str, Any]:
    """What of a run's identity the dataset's pin says."""
    return {
        "build_id": pin.build_id,
        "tokenizer_sha256": pin.tokenizer.sha256,
        "dataset_version": pin.version,
    }


def refusal(pipeline: Pipeline, record: Identity, wanted: Mapping[str, Any]) -> str:
    """Returns why a run cannot go on with the `wanted` values, and what to do; "" where it can."""
    changes = [
        f"{name} is {getattr(record, name)!r} in this run and {value!r} now"
        for name, value in wanted.items()
        if value != getattr(record, name)
    ]
    if not changes:
        return ""
    return (
        f"run {record.run} cannot go on: {'; '.join(changes)}. Put the old value back in "
        f"{pipeline.file}, or begin another run with another train.run"
    )
