"""`stoker doctor`: is this machine ready to be left alone with a pipeline?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import NEW_FILE, PATH, answer, json_option, one_line
from stoker.cli.pipeline.events import STDOUT
from stoker.cli.worker_jobs import Workers
from stoker.config.schema import Pipeline
from stoker.kit.event_types import filled
from stoker.kit.terminal import columns_of, fold
from stoker.kit.workers.pool import Activity
from stoker.store.errors import StokerError
from stoker.store.record import utc_now

EXAMINATION = Activity("doctor", "stoker.cli.doctor.worker", silent_s=10.0)  # a check may take so long
EXITS = {"broken": 2, "warning": 1, "skipped": 0, "ok": 0}  # from the worst to the best
INDENT = 9
UNHEARD = ("broken", "not done: a disk, a driver or the network does not answer", "")


def load(file: str | Path) -> Pipeline:
    """Returns the pipeline, with no look at `state`, which may hang."""
    from stoker.config.load import ALLOW_NETWORK, load_pipeline

    return load_pipeline(file, {**os.environ, ALLOW_NETWORK: "1"})


@click.command(epilog="Example: stoker doctor /etc/stoker/fineweb.yaml --bundle report.tar.gz")
@click.argument("pipeline", metavar="FILE", type=PATH, callback=lambda _context, _parameter, file: load(file))
@json_option
@click.option("--bundle", metavar="TAR", type=NEW_FILE, help="Write all a bug report needs, without secrets.")
def doctor(pipeline: Pipeline, as_json: bool, bundle: Path | None) -> int:
    """Find what would stop this machine while nobody looks, within half a minute.

    It looks at mounts, configuration, disks, permissions, logs, clock, limits, memory, metrics, units, GPUs
    and source, whether the daemons run or not, and changes nothing. Exit code 1: there are warnings, 2:
    something is broken. The bundle has the findings, settings, versions, status, last events and logs;
    secrets and home directories in them are masked.
    """
    from stoker.cli.doctor.bundle import MEMBERS, mask, write_bundle

    found = _examined(pipeline, [*MEMBERS] if bundle is not None else [])
    rows = sorted(_rows(found["check"], str(pipeline.file)), key=lambda row: [*EXITS].index(row["outcome"]))
    report = {"v": 1, "pipeline": pipeline.name, "time": utc_now(), "checks": rows}
    answer(report, _lines(rows), as_json=as_json)
    if bundle is not None:
        members = {"doctor.json": mask(json.dumps(report, indent=1)), **found["member"]}
        write_bundle(bundle, f"stoker-{pipeline.name}", members)
        click.echo(one_line(f"wrote {bundle}; read it before you send it"), err=True)
    return max(EXITS[row["outcome"]] for row in rows)


def _examined(pipeline: Pipeline, members: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what each check found, and the parts of the bundle; some are missing if the worker hangs."""
    found: dict[str, dict[str, Any]] = {"check": {}, "member": {}}

    def hear(message: Mapping[str, Any]) -> bool:
        if is_more := message["kind"] in found:
            found[message["kind"]][message["name"]] = message["found"]
        return not is_more

    task = {"file": str(pipeline.file), "members": members}
    try:
        with Workers() as workers:
            workers.run(EXAMINATION, task, "the examination", hear)
    except StokerError as error:
        click.echo(f"stoker: {one_line(str(error))}", err=True)
    return found


def _rows(found: Mapping[str, Any], file: str) -> Iterator[dict[str, str]]:
    """Yields a row for each finding, and one for each check that has none."""
    from stoker.cli.doctor.checks import CHECKS

    for name, _, usual, _ in CHECKS:
        for outcome, what, do in found.get(name, [UNHEARD]) or [("ok", "", "")]:
            remedy = (do or filled(usual, file, "", str)) if EXITS[outcome] else ""
            yield {"name": name, "outcome": outcome, "what": what, "do": remedy}


def _lines(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields the rows as text, on a terminal folded to its width."""
    for row in rows:
        texts = (f"{row['name']}{': ' * bool(row['what'])}{row['what']}", row["do"])
        for title, text in zip((row["outcome"], ""), filter(None, texts), strict=False):
            shown = fold(text, columns_of(STDOUT), INDENT) if os.isatty(STDOUT) else text
            yield from f"{title:<{INDENT}}{shown}".split("\n")
