"""`stoker rollback` and `stoker data skip-set`: send a request to the train supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.cli.ask_daemon import ask
from stoker.cli.complete import offer
from stoker.cli.options import TEXT, json_option, pipeline_file, planned_file, plural, print_json
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import read_pin
from stoker.corpus.records.sources import Source, read_sources
from stoker.plan.log import read_plan
from stoker.plan.timelines import read_timelines
from stoker.shards.format.identity import set_key
from stoker.store.errors import UsageError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_whole
from stoker.store.requests import Request
from stoker.supervise.lost_sets import by_key
from stoker.supervise.rollback import RollbackRefused, decide, parse_request, rollback_context

EXIT_REFUSED = 65


def _spans(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[list[int]]:
    """Returns FROM:TO values as pairs of steps."""
    pairs = [value.partition(":") for value in values]
    for value, (first, _colon, last) in zip(values, pairs, strict=True):
        if not (first.isdigit() and last.isdigit()):
            raise click.BadParameter(f"{value!r} is not FROM:TO, two steps")
    return [[int(first), int(last)] for first, _colon, last in pairs]


@click.command(epilog="Example: stoker rollback /etc/stoker/fineweb.yaml 9000 --skip 9200:9300")
@pipeline_file
@click.argument("step", type=click.IntRange(min=0), shell_complete=offer("step"))
@click.option(
    "--skip",
    "spans",
    metavar="FROM:TO",
    multiple=True,
    callback=_spans,
    help="Skip what the steps FROM < s <= TO were trained on; may be given several times.",
)
@click.option("--reason", type=TEXT, default="operator", help="What to write down as the reason.")
@json_option
def rollback(pipeline: Pipeline, step: int, spans: list[list[int]], reason: str, as_json: bool) -> int:
    """Go back to the checkpoint of STEP (0: the beginning), and continue from there on a new timeline.

    A running trainer is stopped first. The checkpoints of abandoned steps are moved to abandoned/. A train
    supervisor that is not running does this at its next start.
    """
    if spans and not pipeline.train.follows_plan:
        raise UsageError("--skip: an external trainer does not read Stoker's plan; leave it out")
    return _ask(pipeline, "rollback", {"to": step, "skip": spans, "reason": reason}, as_json=as_json)


@click.command("skip-set", epilog="Example: stoker data skip-set /etc/stoker/fineweb.yaml 826ae25e2e7c26a6")
@planned_file
@click.argument("key")
@click.option("--reason", type=TEXT, default=None, help="What to write down as the reason.")
@json_option
def skip_set(pipeline: Pipeline, key: str, reason: str | None, as_json: bool) -> int:
    """Abandon a shard set that is lost: on hot, on warm, and its source too.

    Refused while the set can be restored. The run continues from its newest checkpoint, and skips the
    rest of the planned entries that name the set; their other sets are read again in the next epoch. A train
    supervisor that is not running does this at its next start.
    """
    return _ask(pipeline, "skip_set", {"key": key} | ({"reason": reason} if reason else {}), as_json=as_json)


def _refused(pipeline: Pipeline, request: Request) -> dict[str, Any] | None:
    """Returns the refusal of what the records show to be impossible; of what may be in the mirror none."""
    run = pipeline.layout.run(pipeline.train.run)
    there = rollback_context(run, read_plan(run.plan), pipeline.train.global_batch)
    try:
        ask_ = parse_request(request, there.steps)
        if ask_.to not in {0, *there.steps} and _is_mirrored(pipeline, ask_.to):
            return None
        decide(ask_, there, _sources(pipeline) if ask_.lost else None)
    except RollbackRefused as refusal:
        return {"refused": str(refusal)}
    return None


def _sources(pipeline: Pipeline) -> dict[str, Source]:
    """Returns the sources by the key of their set."""
    pin = read_pin(pipeline.layout, pipeline.dataset.name)
    if pin is None:
        return {}
    sources, build_id = read_sources(pipeline.layout, pin.dataset).values(), pin.build_id
    return by_key(sources, lambda sha256: set_key(sha256, build_id))


def _is_mirrored(pipeline: Pipeline, step: int) -> bool:
    """Returns whether the mirror may hold a step: by the supervisor's last listing, if there is any."""
    if pipeline.warm_layout is None or not pipeline.train.checkpoint.mirror:
        return False
    listed = read_whole(pipeline.layout.run(pipeline.train.run).mirror)
    return listed is None or any(Mirrored.parse(copy).step == step for copy in listed["copies"])


def _ask(pipeline: Pipeline, verb: str, args: Mapping[str, Any], *, as_json: bool) -> int:
    run = pipeline.layout.run(pipeline.train.run)
    if not run.root.exists():
        read_identity(pipeline.layout, pipeline.train.run)  # raises UsageError: the run has not begun
    condition = {"timeline": read_timelines(run.timelines).current}
    request = Request("", verb, args, condition, "")
    outcome = ask(
        pipeline,
        TRAIN_SUPERVISOR,
        verb,
        args,
        condition,
        quiet=as_json,
        judge=lambda: _refused(pipeline, request),
    )
    if as_json:
        print_json(outcome)
    elif "refused" in outcome:
        click.echo(f"stoker: {verb.replace('_', '-')} is refused: {outcome['refused']}", err=True)
    elif "timeline" in outcome:
        windows = outcome["skipped_windows"]
        passed = f", {windows} windows are skipped" if windows else ""
        click.echo(
            f"rolled back to step {outcome['from']}: timeline {outcome['timeline']}{passed}, "
            f"{plural(len(outcome['moved']), 'checkpoint')} moved to abandoned/t{outcome['left']}"
        )
    return EXIT_REFUSED if "refused" in outcome else 0
