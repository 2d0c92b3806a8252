"""The environments below the prefix, one for each wheel and Python."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zipfile
from pathlib import Path

from stoker.install.steps import DATA, UNAVAILABLE, USAGE, Refused, digest, must, write

COMPLETE = "complete"  # the last file of an environment, and the first to go
CHECKOUT = Path(__file__).parents[3]
_NAME = re.compile(r"\d[\w.+!]*-[0-9a-f]{8}")  # <version>-<digest of wheel and Python>
_DAEMONS = "import stokerd.download_watchdog, stokerd.stage_shard, stokerd.train_supervisor"
_NO_VENV = "Debian needs: apt install python3-venv; and check the disk"
_QUIET = ("--quiet", "--disable-pip-version-check")


def environments(home: Path) -> list[Path]:
    """Returns the environments below a prefix, whole or in part."""
    return sorted(path for path in home.glob("*") if path.is_dir() and _NAME.fullmatch(path.name))


def name_of(wheel: Path, python: str) -> str:
    """Returns the name of the environment of a wheel; raises Refused where it is none of ours."""
    named = re.match(r"stoker-(\d[\w.+!]*)-", wheel.name)
    if named is None or not zipfile.is_zipfile(wheel):
        text = "build one in a checkout, as in: pip wheel --no-deps ."
        raise Refused(DATA, f"{wheel} is no wheel of Stoker: {text}")
    version = must(USAGE, "name another --python", python, "-c", "import sys; print(sys.version)")
    return f"{named[1]}-{digest(f'{digest(wheel.read_bytes())} {python} {version}'.encode())[:8]}"


def make(place: Path, wheel: Path, python: str) -> None:
    """Makes an environment that holds a wheel and all it needs."""
    print(f"make {place}; torch may be a long download", flush=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    must(UNAVAILABLE, _NO_VENV, python, "-m", "venv", place)
    with zipfile.ZipFile(wheel) as archive:
        (place / "constraints.txt").write_bytes(archive.read("stoker/deploy/constraints.txt"))
    index = os.environ.get("STOKER_TORCH_INDEX")
    options = [*_QUIET, "--no-user", *(["--extra-index-url", index] if index else [])]
    own, remedy = place / "bin/python", "check the network and the disk, then run this again"
    options += ["-c", str(place / "constraints.txt")]
    must(UNAVAILABLE, remedy, own, "-m", "pip", "install", *options, wheel)
    must(DATA, "the wheel is broken, or --prefix is mounted noexec", own, "-P", "-c", _DAEMONS)
    packaged = next(place.glob("lib/python*/site-packages/stoker/deploy"))
    (place / "deploy").symlink_to(packaged.relative_to(place))
    os.sync()  # before the file that says that all of it is there
    write(place / COMPLETE, b"")


def remove_unused(home: Path, keep: str | None) -> None:
    """Removes the environments but one and those that a process works from, then an empty prefix."""
    for place in environments(home):
        if place.name != keep and (pids := users_of(place)):
            print(f"{place} is kept for process {pids[0]}; a later run of this removes it")
        elif place.name != keep:
            print(f"remove {place}")
            (place / COMPLETE).unlink(missing_ok=True)  # what a kill leaves does not pass for a whole one
            shutil.rmtree(place)
    with contextlib.suppress(OSError):  # not empty
        home.rmdir()


def users_of(environment: Path) -> list[int]:
    """Returns the other processes that were started from an environment or have mapped a file of it."""
    said, mapped = (os.fsencode(path) + b"/" for path in (environment, environment.resolve()))
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if said in (process / "cmdline").read_bytes() or mapped in (process / "maps").read_bytes():
                found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


def build(python: str, into: Path) -> Path:
    """Builds the wheel of the checkout that this code lies in, with a pip of its own; raises Refused."""
    if not (CHECKOUT / "pyproject.toml").exists():
        raise Refused(USAGE, "name the wheel to install, as in: scripts/install stoker-1.0-py3-none-any.whl")
    print(f"building the wheel of {CHECKOUT}", flush=True)
    must(UNAVAILABLE, _NO_VENV, python, "-m", "venv", into / "tools")
    pip = (into / "tools/bin/python", "-m", "pip", "wheel", *_QUIET, "--no-deps", "-w", into, CHECKOUT)
    must(UNAVAILABLE, "check the network, or name a wheel", *pip)
    return next(into.glob("stoker-*.whl"))
