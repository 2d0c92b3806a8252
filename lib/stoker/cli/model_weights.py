"""The weights that a command reads: a checkpoint's, or the mean of several; raw, or averaged in training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from stoker.checkpoints.format import BODY, TIMELINES_COPY, CheckpointBody, read_body
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import candidates, counts, find_checkpoints, reading
from stoker.cli.options import F
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.errors import DataError, StorageError, UsageError
from stoker.store.files import canonical_json
from stoker.store.record import parse_json

STEMS = {"raw": "model-", "ema": "ema-"}  # of a checkpoint's files with weights, by their kind
TOLERANCE = 1e-6  # between the sum of the shares and 1
EQUAL = "equal"  # shares; an empty text may be a mistake


class CheckpointGone(DataError):
    """The checkpoint was pruned, quarantined or replaced meanwhile."""


class Input(NamedTuple):
    """A proven checkpoint; its share of a mean is in proportion to those of the others."""

    directory: Path
    body: CheckpointBody
    digest: str  # sha256 of checkpoint.json
    share: float


class Weights(NamedTuple):
    """The weights of a model: those of one checkpoint, or the mean of several of one run, in their order."""

    inputs: Sequence[Input]
    kind: str

    @property
    def newest(self) -> Input:
        """The checkpoint that says what the model is: of a mean the one of the last step."""
        return max(self.inputs, key=lambda one: one.body.step)

    @property
    def about(self) -> dict[str, Any]:
        """What tells them from the raw weights of one checkpoint, for release.json; {} for these."""
        whole, names = sum(one.share for one in self.inputs), ("step", "timeline", "share", "sha256")
        rows = [(one.body.step, one.body.timeline, one.share / whole, one.digest) for one in self.inputs]
        average = {"average": [dict(zip(names, row, strict=True)) for row in rows]} if rows[1:] else {}
        return average if self.kind == "raw" else {"weights": self.kind, **average}

    @property
    def task(self) -> dict[str, Any]:
        """What a worker is told of them, which asks held_weights."""
        return {"kind": self.kind, "inputs": [(str(one[0]), *one[2:]) for one in self.inputs]}

    @property
    def digest(self) -> str:
        """The checkpoint's; weights that are not its raw ones have another than every checkpoint."""
        told = canonical_json([self.about, self.newest.digest])
        return hashlib.sha256(told).hexdigest() if self.about else self.newest.digest

    def __str__(self) -> str:
        steps = ", ".join(f"{one.body.step:,}" for one in self.inputs)
        which = f"the mean of steps {steps}" if self.inputs[1:] else f"step {steps}"
        return which if self.kind == "raw" else f"{which} ({self.kind})"


def weights_option(function: F) -> F:
    """Adds `--weights`: a checkpoint's own, or the average of them that training kept."""
    what = "As they were trained, or their average that train.ema keeps."
    return click.option("--weights", "kind", type=click.Choice([*STEMS]), default="raw", help=what)(function)


def mean_options(function: F) -> F:
    """Adds `--last` and `--share`, which make a mean, and `--weights`."""
    last = click.option("--last", type=click.IntRange(1), help="The mean of the N newest of FILE's run.")
    share = click.option("--share", metavar="A,B,...", default=EQUAL, help="Of each in the mean, 1 together.")
    return last(share(weights_option(function)))


@contextmanager
def proven_weights(
    paths: Sequence[Path], *, kind: str, promoted: bool = False, last: int | None = None, share: str = EQUAL
) -> Iterator[Weights]:
    """Yields the weights that a command names; each checkpoint is proven, and held until the block ends.

    A path means the newest checkpoint that it names (see `checkpoints_at`), a pipeline FILE its run's.
    `promoted` takes the one that evaluation promoted, `last` the newest on the run's current timeline.
    Raises UsageError where there are none, or a trainer of the user's own made them; DataError where one is
    not whole, or has no such weights, or there is no mean of them; StorageError where it cannot be read.
    """
    from stoker.cli.which_run import checkpoints_at, promoted_checkpoint, run_at  # no worker needs a pipeline

    chosen, digest = promoted + (last is not None), None
    if chosen and chosen + len(paths) > 2:
        raise UsageError("--promoted and --last choose from one run; name FILE alone, and one of the two")
    if promoted:
        directory, digest = promoted_checkpoint(run_at(paths[0]))
        found = [directory]
    elif last is not None:
        run = run_at(paths[0])
        usable = candidates(find_checkpoints(run.checkpoints), ancestry(read_timelines(run.timelines)))
        if len(usable) < last:
            raise UsageError(f"{run.root} has {len(usable)} checkpoints in its history; name FILE, or fewer")
        found = [entry.path for entry in reversed(usable[:last])]
    else:
        named = [checkpoints_at(run_at(path).root if path.is_file() else path) for path in paths]
        found = [max(each, key=lambda one: one.name) for each in named]
    shares = [1.0] * len(found) if share == EQUAL else parse_shares(share, len(found))
    with ExitStack() as held:
        inputs = [_proven(*one, held, STEMS[kind]) for one in zip(found, shares, strict=True)]
        if digest not in (None, inputs[0].digest):
            raise DataError(f"{found[0]} is another than the one that was promoted; leave out --promoted")
        if len(inputs) > 1:
            _require_a_mean(inputs)
        yield Weights(inputs, kind)


@contextmanager
def held_weights(task: Mapping[str, Any]) -> Iterator[Weights]:
    """Yields weights that were proven, and holds them until the block ends; CheckpointGone where one went."""
    inputs = []
    with ExitStack() as held:
        for directory, digest, share in ((Path(place), *rest) for place, *rest in task["inputs"]):
            try:
                held.enter_context(reading(directory))
                data = (directory / BODY).read_bytes()
            except FileNotFoundError as error:
                raise CheckpointGone(f"{directory} was pruned or quarantined; name another") from error
            if hashlib.sha256(data).hexdigest() != digest:
                raise CheckpointGone(f"{directory} is another one than was named; ask again")
            inputs.append(Input(directory, read_body(data), digest, share))
        yield Weights(inputs, task["kind"])


def parse_shares(text: str, count: int) -> list[float]:
    """Returns the share of each of so many checkpoints; raises UsageError."""
    shares = []
    with suppress(ValueError):
        shares = [float(part) for part in text.split(",")]
    # With a value that is not finite the sum is not either.
    if len(shares) != count or min(shares) < 0 or not abs(sum(shares) - 1) <= TOLERANCE:
        raise UsageError(f"--share {text}: give {count} numbers like 0.2,0.8, none below 0, 1 together")
    return shares


def _proven(directory: Path, share: float, held: ExitStack, stem: str) -> Input:
    if not (directory / "model.json").exists() and (directory / BODY).exists():
        raise UsageError(f"{directory} is of an external trainer: Stoker knows no model in it")
    held.enter_context(reading(directory))
    proof = prove_checkpoint(directory)
    if proof.verdict == "invalid":
        raise DataError(f"{directory} is not whole: {proof.reason}; use an older checkpoint")
    if proof.body is None or proof.digest is None:
        raise StorageError(f"{directory} cannot be read now: {proof.reason}; check the disk and try again")
    if not any(name.startswith(stem) for name in proof.body.files):
        raise DataError(f"{directory} has no averaged weights: train.ema was off; use --weights raw")
    return Input(directory.absolute(), proof.body, proof.digest, share)


def _require_a_mean(inputs: Sequence[Input]) -> None:
    """Raises DataError unless these are of one model in one history, UsageError where one is there twice."""
    known: dict[str, Input] = {}
    for one in inputs:
        if (other := known.setdefault(one.digest, one)) is not one:
            raise UsageError(f"{other.directory} and {one.directory} are the same checkpoint; name it once")
        first, kin = _kin(inputs[0]), _kin(one)
        if differing := sorted(key for key in first.keys() | kin.keys() if first.get(key) != kin.get(key)):
            both = f"{inputs[0].directory} and {one.directory}"
            raise DataError(f"{both} are of another {', '.join(differing)}: no mean of them is a model")
    # Wherever they have been copied to, the longest log knows all rollbacks.
    places = {place for one in inputs for place in (one.directory, *one.directory.resolve().parents[:3])}
    log = max((place / TIMELINES_COPY for place in places), key=lambda log: read_timelines(log).current)
    history = ancestry(read_timelines(log))
    for one in inputs:
        if not counts(one.body.timeline, one.body.step, history):
            raise DataError(f"{one.directory} is past a rollback, as {log} says; leave it out of the mean")


def _kin(one: Input) -> dict[str, object]:
    """Returns what checkpoints have in common that a mean may be of; windows may differ in length."""
    model = parse_json((one.directory / "model.json").read_bytes()) | {"seq_len": 0}
    return {**model, "run_id": one.body.raw.get("run_id"), "tokenizer": one.body.files["tokenizer.json"]}
