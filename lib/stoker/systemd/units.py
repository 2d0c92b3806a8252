"""The units of a pipeline's daemons: which systemd runs them, as whom, and where their files lie."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NO_TOKEN = "-"  # noqa: S105 - the default: systemd knows no empty one, and fails where the file is missing


@dataclass(frozen=True)
class Manager:
    """A systemd: where its units' drop-ins lie, and the pipelines' files that the units read."""

    units: Path
    files: Path
    is_users: bool = False  # a person's own (systemctl --user): no other account, and no sandbox

    def file(self, pipeline: str) -> Path:
        """Returns the file that the units of this pipeline read."""
        return self.files / f"{pipeline}.yaml"

    def drop_in(self, daemon: str, pipeline: str) -> Path:
        """Returns the path of a daemon's drop-in."""
        return self.units / f"{unit_name(daemon, pipeline)}.d" / "50-stoker.conf"


SYSTEM = Manager(Path("/etc/systemd/system"), Path("/etc/stoker"))


@dataclass(frozen=True)
class Account:
    """Whom the daemons run as: the owner of the state directory."""

    name: str
    group: str
    home: Path


def unit_name(daemon: str, pipeline: str) -> str:
    """Returns the name of a daemon's unit."""
    return f"stoker-{daemon.replace('_', '-')}@{pipeline}.service"


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


def allows(path: Path, uid: int, bits: int) -> bool:
    """Returns whether a path's mode and file system allow a user all of these (os.R_OK, W_OK, X_OK).

    Reads its access lists only for the user whose process this is.
    """
    if uid == os.geteuid():
        return os.access(path, bits, effective_ids=True)
    found, name = path.stat(), account(uid).name
    groups = os.getgrouplist(name, pwd.getpwuid(uid).pw_gid) if not name.isdigit() else []
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    is_closed = bits & os.W_OK and os.statvfs(path).f_flag & os.ST_RDONLY
    return not is_closed and found.st_mode >> shift & bits == bits


def users_manager(environ: Mapping[str, str] = os.environ) -> Manager:
    """Returns the systemd of the user whose process this is."""
    home = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return Manager(home / "systemd" / "user", home / "stoker", is_users=True)


def manager_of_unit(daemon: str, pipeline: str, cgroup: str) -> Manager | None:
    """Returns the systemd that runs a process as the daemon's unit, by its cgroup file; else None."""
    groups = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    mine = next((group for group in groups if unit_name(daemon, pipeline) in group.split("/")), None)
    if mine is None:
        return None
    return users_manager() if "/user@" in mine else SYSTEM
