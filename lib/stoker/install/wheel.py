"""The wheel: found, built, opened; and the Python that runs it."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from stoker.install.steps import DATA, UNAVAILABLE, USAGE, Refused, Steps, digest

_IN_WHEEL = "stoker/deploy/"
NO_VENV = "Debian needs: apt install python3-venv; and look at the disk"
CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Wheel:
    """A wheel of Stoker: its version, the digest of its bytes, and what it has of deploy/."""

    path: Path
    version: str
    digest: str
    deploy: dict[str, bytes]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Opens a wheel; raises Refused where it is none of ours."""
        try:
            data = path.read_bytes()
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                metadata = next(
                    name for name in names if fnmatch.fnmatch(name, "stoker-*.dist-info/METADATA")
                )
                said = archive.read(metadata).decode()
                inside = [name for name in names if name.startswith(_IN_WHEEL) and "/../" not in name]
                deploy = {name.removeprefix(_IN_WHEEL): archive.read(name) for name in inside}
        except (OSError, StopIteration, zipfile.BadZipFile, UnicodeDecodeError) as error:
            raise Refused(
                DATA, f"{path} is no wheel of Stoker ({error or 'it holds none'}); {_BUILD}"
            ) from error
        version = re.search(r"^Version: (\d[\w.+!]*)$", said, re.MULTILINE)
        if version is None or "constraints.txt" not in deploy:
            raise Refused(DATA, f"{path} lacks its version or stoker/deploy; {_BUILD}")
        return cls(path.absolute(), version[1], digest(data), deploy)


_BUILD = "build one in a checkout: pip wheel --no-deps ."


def build(python: str, into: Path) -> Path:
    """Builds the wheel of the checkout that this code lies in, with a pip of its own; raises Refused."""
    if not (CHECKOUT / "pyproject.toml").exists():
        raise Refused(USAGE, "name the wheel to install, as in: scripts/install stoker-1.0-py3-none-any.whl")
    print(f"building the wheel of {CHECKOUT}", flush=True)
    steps, pip = Steps(is_dry=False), (into / "tools/bin/python", "-m", "pip", "wheel", "--quiet")
    steps.must(UNAVAILABLE, NO_VENV, python, "-m", "venv", into / "tools")
    quiet = ("--disable-pip-version-check", "--no-deps", "--wheel-dir")
    steps.must(UNAVAILABLE, "look at the network, or name a wheel", *pip, *quiet, into, CHECKOUT)
    return next(into.glob("stoker-*.whl"))


def default_python() -> str:
    """Returns the system's own Python where it is new enough: the daemons' account can execute that one."""
    if named := os.environ.get("STOKER_PYTHON"):
        return named
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    system = "/usr/bin/python3"
    known = Path(system).exists() and subprocess.run([system, "-c", new_enough], check=False).returncode == 0
    # Resolved: where the system comes to have another Python, the environment's own is often there still.
    return str(Path(system).resolve()) if known else sys.executable
