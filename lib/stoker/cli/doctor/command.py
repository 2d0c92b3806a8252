"""`stoker doctor`: is this machine ready to be left alone with a pipeline?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, answer, json_option, one_line
from stoker.cli.worker_jobs import WorkerFailed, Workers
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.kit.event_types import filled
from stoker.kit.workers.pool import Activity
from stoker.store.errors import ConfigError, UnavailableError, UsageError
from stoker.store.record import utc_now

EXAMINATION = Activity("doctor", "stoker.cli.doctor.worker", silent_s=10.0)  # a check may take so long
EXITS = {"broken": 2, "warning": 1, "skipped": 0, "ok": 0}  # from the worst to the best
UNHEARD = ("broken", "not done: a disk, a driver or the network does not answer", "")
WIDTH = 9


def _load(_context: click.Context, _parameter: click.Parameter, file: Path) -> object:
    from stoker.config.load import ALLOW_NETWORK, load_pipeline

    return load_pipeline(file, {**os.environ, ALLOW_NETWORK: "1"})  # with no look at `state`, which may hang


@click.command(epilog="Example: stoker doctor /etc/stoker/fineweb.yaml --bundle report.tar.gz")
@click.argument("pipeline", metavar="FILE", type=PATH, callback=_load)
@json_option
@click.option("--bundle", metavar="TAR", type=PATH, help="Write what a bug report needs, without secrets.")
def doctor(pipeline: Pipeline, as_json: bool, bundle: Path | None) -> int:
    """Find what would stop this machine while nobody looks, within half a minute.

    It looks at mounts, configuration, disks, permissions, logs, clock, limits, memory, metrics, units, GPUs
    and source, whether the daemons run or not, and changes nothing. Exit code 1: there are warnings, 2:
    something is broken. The bundle has the findings, settings, versions, status, last events and logs;
    secrets and home directories in them are masked.
    """
    from stoker.cli.doctor.bundle import MEMBERS, mask, write_bundle

    if bundle is not None and (os.path.lexists(bundle) or not bundle.absolute().parent.is_dir()):
        raise UsageError(f"{bundle} exists, or its directory does not; name a new file for the bundle")
    found, members = _examined(pipeline, [*MEMBERS] if bundle is not None else [])
    rows = sorted(_rows(found, str(pipeline.file)), key=lambda row: [*EXITS].index(row["outcome"]))
    report = {"v": 1, "pipeline": pipeline.name, "time": utc_now(), "checks": rows}
    answer(report, _lines(rows), as_json=as_json)
    if bundle is not None:
        parts = {"doctor.json": mask(json.dumps(report, indent=1)), **members}
        size = write_bundle(bundle, f"stoker-{pipeline.name}", parts)
        click.echo(one_line(f"wrote {bundle}, {format_bytes(size)}; read it before you send it"), err=True)
    return max(EXITS[row["outcome"]] for row in rows)


def _examined(pipeline: Pipeline, members: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what the checks found, and the parts of the bundle; some are missing if the worker hangs."""
    found, parts = dict[str, Any](), dict[str, str]()

    def hear(message: Mapping[str, Any]) -> bool:
        if message["kind"] == "check":
            found[message["name"]] = message["findings"]
        elif message["kind"] == "member":
            parts[message["name"]] = message["text"]
        return bool(message["kind"] == "done")

    task = {"file": str(pipeline.file), "members": members}
    try:
        with Workers() as workers:
            workers.run(EXAMINATION, task, "the examination", hear)
    except (WorkerFailed, UnavailableError) as error:
        if error.exit_code == ConfigError.exit_code:
            raise ConfigError(str(error).removeprefix("the examination: ")) from error
        click.echo(f"stoker: {one_line(str(error))}", err=True)
    return found, parts


def _rows(found: Mapping[str, Any], file: str) -> Iterator[dict[str, str]]:
    """Yields a row for each finding, and one for each check that has none."""
    from stoker.cli.doctor.checks import CHECKS

    for check in CHECKS:
        told = found.get(check.name, [UNHEARD])
        for outcome, what, do in [one for one in told if one[0] != "ok"] or told or [("ok", "", "")]:
            remedy = (do or filled(check.do, file, "", str)) if EXITS[outcome] else ""
            yield {"name": check.name, "outcome": outcome, "what": what, "do": remedy}


def _lines(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for row in rows:
        yield f"{row['outcome']:<{WIDTH}}{row['name']}{': ' * bool(row['what'])}{row['what']}"
        if row["do"]:
            yield f"{'':<{WIDTH}}{row['do']}"
