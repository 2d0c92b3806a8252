"""The systemd unit that a daemon runs as: whose it is, and whether its drop-in is what the file asks for."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from stoker.config.drop_ins import (
    SYSTEM,
    Account,
    Manager,
    differences,
    drop_in,
    manager_of_user,
    opened,
    unit_name,
)
from stoker.config.schema import Pipeline

_CGROUP = Path("/proc/self/cgroup")


def account_of(state: Path) -> Account | None:
    """Returns the owner of a state directory; None where there is none yet, or it is root's."""
    try:
        found = state.stat()
    except OSError:
        return None
    return account(found.st_uid) if found.st_uid else None


def account(uid: int) -> Account:
    """Returns a user's account; one without a name is known by its number."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), str(uid), Path("/"))
    group = str(entry.pw_gid)
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(entry.pw_gid).gr_name
    return Account(entry.pw_name, group, Path(entry.pw_dir))


def users_manager(environ: Mapping[str, str] = os.environ) -> Manager:
    """Returns the systemd of the user whose process this is."""
    return manager_of_user(Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()))


def manager_of_unit(daemon: str, pipeline: str, cgroup: str) -> Manager | None:
    """Returns the systemd that runs a process as the daemon's unit, by its cgroup file; else None."""
    groups = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    mine = next((group for group in groups if unit_name(daemon, pipeline) in group.split("/")), None)
    if mine is None:
        return None
    return users_manager() if "/user@" in mine else SYSTEM


def unit_differs(daemon: str, pipeline: Pipeline) -> tuple[Path, list[str]] | None:
    """Returns a drop-in and the lines in which it differs from the file; None where it agrees.

    Only a daemon that systemd runs as its shipped unit has one, over the file that this unit reads.
    """
    try:
        manager = manager_of_unit(daemon, pipeline.name, _CGROUP.read_text())
    except OSError:
        return None
    if manager is None or manager.file(pipeline.name) != pipeline.file:
        return None
    path = manager.drop_in(daemon, pipeline.name)
    try:
        found = path.read_text(errors="replace")
    except FileNotFoundError:
        found = ""
    except OSError as error:
        return path, [str(error)]
    wanted = drop_in(pipeline, daemon, account_of(pipeline.state), manager, opened(found))
    lines = differences(found, wanted)
    return (path, lines) if lines else None
