"""`stoker rollback` and `stoker skip-set`: ask the train supervisor, or do its work where there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from stoker.checkpoints.select import candidates, find_checkpoints
from stoker.cli.ask_daemon import POLL_S, see_to
from stoker.cli.options import json_option, pipeline_file, plural, print_json
from stoker.cli.which_run import read_identity
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import read_pin
from stoker.corpus.records.sources import read_sources
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process.process_id import processes_with_environment
from stoker.plan.log import Plan, read_plan
from stoker.plan.timelines import ancestry, read_timelines
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError, LockHeld, StorageError, Transient, UnavailableError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request
from stoker.supervise.mirror.fetch import fetch_step
from stoker.supervise.rollback.apply import finish, prove_target, restore_lost, roll_back, standing
from stoker.supervise.rollback.decide import (
    Ask,
    RollbackRefused,
    already,
    decide,
    lost_key,
    outcome_of,
    parse_ask,
    parse_skip_set,
)
from stoker.supervise.rollback.lost_sets import by_key, require_lost
from stoker.supervise.run.record import RunRecord, reset_record

EXIT_REFUSED = 65
DONE = {"rollback": "rolled back", "skip_set": "given up"}
TRAINER_PATIENCE_S = 20.0  # a daemon that starts meanwhile waits 30 s for a command


def _spans(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[list[int]]:
    """FROM:TO as pairs of steps."""
    pairs = [value.partition(":") for value in values]
    for value, (first, _colon, last) in zip(values, pairs, strict=True):
        if not (first.isdigit() and last.isdigit()):
            raise click.BadParameter(f"{value!r} is not FROM:TO, two steps")
    return [[int(first), int(last)] for first, _colon, last in pairs]


@click.command(
    epilog="Example: stoker rollback /etc/stoker/fineweb.yaml 9000 --skip 9200:9300 --reason spike"
)
@pipeline_file
@click.argument("step", type=click.IntRange(min=0))
@click.option(
    "--skip",
    "spans",
    metavar="FROM:TO",
    multiple=True,
    callback=_spans,
    help="Pass over what the steps FROM < s <= TO were trained on; may be given several times.",
)
@click.option("--reason", default="operator", help="What to write down as the reason.")
@json_option
def rollback(file: Path, step: int, spans: list[list[int]], reason: str, as_json: bool) -> int:
    """Go back to the checkpoint of STEP (0: the beginning), and go on from there on a new timeline.

    A trainer that runs is stopped first. The checkpoints of the steps given up are moved to abandoned/. With
    the train supervisor down it is done at once, and shows at its next start.
    """
    return _ask(file, "rollback", {"to": step, "skip": spans, "reason": reason}, as_json=as_json)


@click.command("skip-set", epilog="Example: stoker skip-set /etc/stoker/fineweb.yaml 826ae25e2e7c26a6")
@pipeline_file
@click.argument("key")
@click.option("--reason", default=None, help="What to write down as the reason.")
@json_option
def skip_set(file: Path, key: str, reason: str | None, as_json: bool) -> int:
    """Give up a shard set that is lost: on hot, on warm, and its source too.

    Refused while it can be restored. The run goes on from its newest checkpoint, and passes over what is left
    of the planned entries that name the set; their other sets are read again in the next epoch.
    """
    return _ask(file, "skip_set", {"key": key} | ({"reason": reason} if reason else {}), as_json=as_json)


def _ask(file: Path, verb: str, args: Mapping[str, Any], *, as_json: bool) -> int:
    """Have it done by the supervisor, or do it where there is none; UsageError before the run has begun."""
    pipeline = load_pipeline(file)
    run = pipeline.layout.run(pipeline.train.run)
    if not run.root.exists():
        read_identity(pipeline.layout, pipeline.train.run)  # says that it has not begun
    condition = {"timeline": read_timelines(run.timelines).current}
    do_it = partial(_do_it, pipeline)
    outcome = see_to(pipeline, TRAIN_SUPERVISOR, verb, args, condition, do_it=do_it, quiet=as_json)
    if as_json:
        print_json(outcome)
    elif "refused" in outcome:
        click.echo(f"stoker: not {DONE[verb]}: {outcome['refused']}", err=True)
    else:
        windows = outcome["skipped_windows"]
        passed = f", {windows} windows are passed over" if windows else ""
        click.echo(
            f"rolled back to step {outcome['from']}: timeline {outcome['timeline']}{passed}, "
            f"{plural(len(outcome['moved']), 'checkpoint')} moved to abandoned/t{outcome['left']}"
        )
    return EXIT_REFUSED if "refused" in outcome else 0


def _do_it(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    """The supervisor's work, with its lock held; returns the outcome."""
    run = pipeline.layout.run(pipeline.train.run)
    with _nothing_alive(pipeline):
        try:
            record = reset_record(run.record, 0)
            restore_lost(run)
            finish(run, pipeline.quarantine)
            plan = read_plan(run.plan, record.identity.run_id)
            ask = _parsed(pipeline, request, plan)
            fork = already(ask, read_timelines(run.timelines))
            moved: tuple[str, ...] = ()
            if fork is None:
                _fetch_if_mirrored(pipeline, ask, record)
                fork = decide(ask, standing(run, plan, pipeline.train.global_batch))
                prove_target(run, fork.from_step)
                reset_record(run.record, ask.to, write=True)
                moved = roll_back(run, fork, pipeline.quarantine).names
            return outcome_of(fork, plan, moved)
        except (RollbackRefused, DataError) as refusal:
            return {"refused": str(refusal)}


def _parsed(pipeline: Pipeline, request: Request, plan: Plan) -> Ask:
    """What the request asks for; RollbackRefused for a shard set that is not lost."""
    if request.verb == "rollback":
        return parse_ask(request.args, request.condition, request.id)
    found = standing(pipeline.layout.run(pipeline.train.run), plan, pipeline.train.global_batch)
    ask = parse_skip_set(request.args, request.condition, found.steps, request.id)
    pin = read_pin(pipeline.layout, pipeline.dataset.name)
    if pin is not None and already(ask, found.timelines) is None:
        sources = read_sources(pipeline.layout, pipeline.dataset.name).values()
        require_lost(lost_key(ask, found), by_key(sources, lambda sha256: set_key(sha256, pin.build_id)))
    return ask


def _fetch_if_mirrored(pipeline: Pipeline, ask: Ask, record: RunRecord) -> None:
    """Bring back the checkpoint gone back to where only the mirror has it."""
    run = pipeline.layout.run(pipeline.train.run)
    history = ancestry(read_timelines(run.timelines))
    here = candidates(find_checkpoints(run.checkpoints), history)
    if not ask.to or any(one.step == ask.to for one in here):
        return
    try:
        fetch_step(pipeline, ask.to, history, record.identity.run_id)
    except (UnavailableError, StorageError) as problem:
        raise RollbackRefused(
            f"step {ask.to} is not here, and the mirror cannot be used: {problem}"
        ) from problem


def _nothing_alive(pipeline: Pipeline) -> Lock:
    """The run's trainer.lock, once a trainer that an ended supervisor has left has saved and ended."""
    run = pipeline.layout.run(pipeline.train.run)
    give_up = time.monotonic() + TRAINER_PATIENCE_S
    while True:
        with contextlib.suppress(LockHeld):
            lock = Lock.acquire(run.trainer_lock, purpose="rollback")
            alive = processes_with_environment("STOKER_RUN_DIR", str(run.root))
            if read_holder(run.rank0_lock) is None and not alive:
                return lock
            lock.release()
        if time.monotonic() >= give_up:
            raise Transient(
                f"a trainer of run {pipeline.train.run} is alive without its supervisor (see "
                f"{run.rank0_lock}): wait for its end, or start the train supervisor, which sees to it"
            )
        time.sleep(POLL_S)
