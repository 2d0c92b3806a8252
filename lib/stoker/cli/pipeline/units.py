"""`stoker units`: what the systemd units take from a pipeline's file, as drop-ins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.options import PATH, one_line
from stoker.cli.pipeline.exposure import exposure
from stoker.config.load import load_pipeline
from stoker.config.places import mounts
from stoker.config.schema import Pipeline
from stoker.store.errors import UsageError, storage_errors
from stoker.store.files import write_atomic
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.systemd.credentials import secret_file_flaw
from stoker.systemd.drop_ins import (
    ACCOUNT,
    TOKEN_FILE,
    differences,
    drop_in,
    is_edited,
    opened,
    written_for,
)
from stoker.systemd.units import SYSTEM, Account, Manager, account_of, allows, unit_name, users_manager

MODE = 0o644
EXIT_DIFFERS = 1
_QUOTED = re.compile(r"""(['"])(.*)\1""")
BESIDE = ("audit", "scrub", "notify")  # what timers start: as the daemons' user, with a record in `state`


def as_units_have_it(file: Path) -> Pipeline:
    """Returns the pipeline as the units have it: overridden by their environment file, not by this shell."""
    return load_pipeline(file, _variables(_read(file.with_suffix(".env")) or ""))


def _load(_context: click.Context, _parameter: click.Parameter, file: Path) -> Pipeline:
    return as_units_have_it(file)


def _variables(text: str) -> dict[str, str]:
    """Returns the variables of a unit's environment file."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith(("#", ";")))
    return {name.rstrip(): _QUOTED.sub(r"\2", value.lstrip()) for name, _, value in pairs}


@click.command(epilog="Example: stoker units /etc/stoker/fineweb.yaml --write")
@click.argument("pipeline", metavar="FILE", type=PATH, callback=_load)
@click.option("--write", "asked", flag_value="write", help="Write the drop-ins that differ.")
@click.option(
    "--check", "asked", flag_value="check", help="Show the lines that differ; exit code 1: some do."
)
@click.option("--user", "is_users", is_flag=True, help="For units of your own (systemctl --user).")
@click.option("--root", type=PATH, default=Path("/"), help="Where the drop-ins lie below, and FILE.")
@click.pass_context
def units(context: click.Context, pipeline: Pipeline, asked: str | None, is_users: bool, root: Path) -> None:
    """Print the drop-ins that the systemd units of FILE's pipeline need, or write them below /etc/systemd.

    They hold what the file alone knows: the directories that the sandbox opens, the mounts that are needed,
    the time for a stop, the hub's token, and what a trainer of your own may do. A drop-in that somebody
    has edited is kept, and the new one is laid beside it.
    """
    manager, account = users_manager() if is_users else SYSTEM, account_of(pipeline.state)
    texts, places = {}, {}
    for daemon, path, text, _ in drop_ins_of(pipeline, manager, account, root):
        texts[daemon], places[daemon] = text, path
    if asked is None:
        for daemon, text in texts.items():
            click.echo(f"# {places[daemon]}\n{text}")
    else:
        _require_units_file(pipeline, _below(root, manager.file(pipeline.name)))
    for warning in warnings_of(pipeline, manager, account):
        click.echo(f"warning: {one_line(warning)}", err=True)
    if pipeline.train.command is not None and not is_users:
        score = exposure(unit_name(TRAIN_SUPERVISOR, pipeline.name), texts[TRAIN_SUPERVISOR])
        click.echo(f"with an external trainer: {score}", err=True)
    if asked == "write":
        context.exit(_write(texts, places))
    if asked == "check":
        context.exit(_check(texts, places))


def drop_ins_of(
    pipeline: Pipeline, manager: Manager, account: Account | None, root: Path = Path("/")
) -> Iterator[tuple[str, Path, str, str | None]]:
    """Yields each unit's daemon, and its drop-in: where it lies, what it is to be, and what is there now."""
    here = {point for point, _ in mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))}
    for daemon in _working(pipeline):
        path = _below(root, manager.drop_in(daemon, pipeline.name))
        known = here | opened((found := _read(path)) or "")  # a disk may be away now
        yield daemon, path, drop_in(pipeline, daemon, account, manager, known), found


def _working(pipeline: Pipeline) -> list[str]:
    daemons = [daemon for daemon in DAEMONS if pipeline.has_data or daemon == TRAIN_SUPERVISOR]
    return [*daemons, *BESIDE]


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _require_units_file(pipeline: Pipeline, file: Path) -> None:
    """Raises UsageError where the units of this name read another file."""
    if file == pipeline.file or (file.exists() and file.samefile(pipeline.file)):
        return
    has = "is another one" if file.exists() else "does not exist"
    remedy = f"install -D -m 640 -g {ACCOUNT} {pipeline.file} {file}, and name that (your own units: --user)"
    raise UsageError(f"the units of pipeline {pipeline.name} read {file}, which {has}: {remedy}")


def _write(texts: dict[str, str], places: dict[str, Path]) -> int:
    """Writes what differs; returns 1 where a drop-in that somebody has edited stays as it is."""
    kept = written = 0
    for daemon, text in texts.items():
        path = places[daemon]
        found = _read(path)
        if found == text:
            continue
        is_kept = found is not None and is_edited(found)
        target = path.with_name(f"{path.name}.new") if is_kept else path
        with storage_errors("write", target):
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(target, text.encode(), mode=MODE)
        if is_kept:
            kept += 1
            click.echo(
                f"{path} has been edited and stays; the new one is {target.name} beside it. It differs:"
            )
            click.echo("\n".join(map(one_line, differences(found or "", text))))
            click.echo(f"Take over what you need into a drop-in of your own, then mv {target} {path}")
        else:
            written += 1
            other = written_for(found or "")
            was = f" in place of that for {other}" if other not in ("", written_for(text)) else ""
            click.echo(f"wrote {path}{was}")
    if written:
        click.echo("systemctl daemon-reload takes them up; a unit has them from its next start on")
    elif not kept:
        click.echo("every drop-in is what the file asks for")
    return EXIT_DIFFERS if kept else 0


def _check(texts: dict[str, str], places: dict[str, Path]) -> int:
    """Shows the lines that differ, those of the drop-in (-) and those to have (+)."""
    is_different = False
    for daemon, text in texts.items():
        found = _read(places[daemon])
        if lines := differences(found or "", text):
            is_different = True
            click.echo(f"{places[daemon]}{'' if found is not None else ' is missing'}:")
            click.echo("\n".join(map(one_line, lines)))
    return EXIT_DIFFERS if is_different else 0


def _read(path: Path) -> str | None:
    try:
        with storage_errors("read", path):
            return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def warnings_of(pipeline: Pipeline, manager: Manager, account: Account | None) -> Iterator[str]:
    """Yields what would keep the units from their work on this machine."""
    source, external = pipeline.dataset.source, pipeline.train.external
    if not manager.is_users:
        yield from _unreadable(pipeline, account)
        for place in (pipeline.hot if pipeline.has_data else None, pipeline.warm):
            if place is not None and not place.exists():
                who = account.name if account else ACCOUNT
                yield f"{place} does not exist: mount its disk, or install -d -o {who} -m 750 {place}"
    if source.spec.has_token:
        token = source.token_file or manager.files / TOKEN_FILE
        if (source.token_file is not None or token.exists()) and (flaw := secret_file_flaw(token)):
            yield flaw
    if pipeline.train.command is not None and (external is None or external.directory is None):
        where = pipeline.file.parent
        yield f"train.external.directory is not set: the trainer runs in {where}, and may not write there"


def _unreadable(pipeline: Pipeline, account: Account | None) -> Iterator[str]:
    """Yields a sentence where the daemons' account may not read the file, as far as its mode tells."""
    import grp
    import pwd

    name, file, state = account.name if account else ACCOUNT, pipeline.file, pipeline.state
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        if name == ACCOUNT:
            yield f"there is no user {name} yet: systemd-sysusers makes it"
        else:
            yield f"{state} is user {name}'s, whom systemd does not know: chown -R {ACCOUNT}: {state}"
        return
    if not allows(file, entry.pw_uid, os.R_OK):
        group = grp.getgrgid(entry.pw_gid).gr_name
        yield f"{name} may not read {file}: chgrp {group} {file}, then chmod 640 {file}"
    if closed := [str(place) for place in file.parents if not allows(place, entry.pw_uid, os.X_OK)]:
        yield f"{name} may not enter {closed[-1]}: make it a member of the group of that directory"
