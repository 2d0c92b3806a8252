"""What is looked at before anything is changed."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from pathlib import Path

from stoker.install.places import Places
from stoker.install.steps import CONFIG, Refused, part_of

PAGES = ("README.md", "docs")  # links that units, alerts and the journal name
HOME_OF_ACCOUNT = "/var/lib/stoker"  # as in stoker.sysusers
ENVIRONMENT = re.compile(r"\d[\w.+!]*-[0-9a-f]{8}")  # <version>-<digest of wheel and Python>


def require_place(places: Places, python: str) -> None:
    """Raises Refused where Stoker cannot be installed at these places."""
    home = places.home
    there = next(path for path in (home, *home.parents) if path.exists())
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        what = f"{home} lies on a file system that is mounted noexec, where no program starts"
        raise Refused(CONFIG, f"{what}: name another --prefix, or mount it with exec")
    if others := _not_ours(home):
        found = ", ".join(others[:3])
        raise Refused(
            CONFIG, f"{home} holds something else ({found}): move it away, or name another --prefix"
        )
    if places.is_user and os.geteuid() == 0 != Path.home().stat().st_uid:
        raise Refused(CONFIG, f"{Path.home()} is another user's: run this as that user, without sudo")
    if places.root == Path("/") and not places.is_user:
        _require_reachable(home, "the prefix", "--prefix")
        _require_reachable(Path(python).resolve(), "Python", "--python, as /usr/bin/python3")
        _require_account()


def _not_ours(home: Path) -> list[str]:
    """Returns the names at the prefix that no installation has made."""
    if not home.is_dir():
        return [home.name] if home.exists() else []
    made = [home / name for name in ("current", *PAGES)]
    links = {path.name for path in (*made, *map(part_of, made)) if path.is_symlink()}
    return sorted(
        path.name
        for path in home.iterdir()
        if path.name not in links and not ENVIRONMENT.fullmatch(path.name)
    )


def _require_reachable(path: Path, what: str, option: str) -> None:
    """Raises Refused where not everyone may enter each directory on the way, as the daemons must."""
    closed = next((one for one in path.parents if one.exists() and not one.stat().st_mode & 0o001), None)
    if closed is not None:
        why = f"{what} {path} lies below {closed}, which the daemons' account stoker may not enter"
        raise Refused(CONFIG, f"{why}: name another {option}")


def _require_account() -> None:
    with contextlib.suppress(KeyError):
        home = pwd.getpwnam("stoker").pw_dir
        if home != HOME_OF_ACCOUNT:
            remedy = f"rename that user; or, if it is the daemons', usermod -d {HOME_OF_ACCOUNT} stoker"
            raise Refused(
                CONFIG, f"there is a user stoker with the home {home}, not {HOME_OF_ACCOUNT}: {remedy}"
            )


def environments(home: Path) -> list[Path]:
    """Returns the environments below a prefix, whole or in part."""
    return sorted(path for path in home.glob("*") if path.is_dir() and ENVIRONMENT.fullmatch(path.name))


def users_of(environment: Path) -> list[int]:
    """Returns the other processes that were started from an environment or have mapped a file of it."""
    said, mapped = (os.fsencode(path) + b"/" for path in (environment, environment.resolve()))
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if said in (process / "cmdline").read_bytes() or mapped in (process / "maps").read_bytes():
                found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


def is_set(line: str) -> bool:
    """Returns whether the host has a line of sysctl.d, or cannot have it."""
    key, _, value = line.partition("=")
    try:
        now = Path("/proc/sys", key.strip().replace(".", "/")).read_text().strip()
    except OSError:
        return True
    return now == value.strip() or (key.startswith("fs.") and int(now) >= int(value))
