"""Wheels of this checkout, and installations of them below a directory of a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from support.once import made_once
from support.waiting import LONG_S

REPO = Path(__file__).resolve().parents[2]
UNIT = "usr/local/lib/systemd/system/stoker@.target"
# Kills the installer before the N-th of its acts below a directory, or a command with that word.
KILLER = (
    f"LIB = {str(REPO / 'lib')!r}"
    + """
import os, runpy, signal, sys
kill, below, sys.argv = sys.argv[1], sys.argv[2], sys.argv[3:]
ACTS = {"os.rename", "os.remove", "os.symlink", "os.mkdir", "os.rmdir", "shutil.rmtree", "subprocess.Popen"}
done = 0
def hook(event, arguments):
    global done
    is_open = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
    if (is_open or event in ACTS) and below in str(arguments):
        done += 1
        if str(done) == kill or kill in map(str, arguments[1] if event == "subprocess.Popen" else ()):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
sys.path.insert(0, LIB)
runpy.run_module("stoker.install", run_name="__main__")
"""
)


def built_wheel(factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, as `pip wheel` makes it."""

    def make(home: Path) -> None:
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check"]
        # No isolation: an environment for the build would be filled from the package index.
        subprocess.run([*pip, "--no-build-isolation", "-w", home, REPO], check=True, timeout=LONG_S)

    return next(made_once(factory, "wheel", make).glob("*.whl"))


def offline_wheel(wheel: Path, into: Path, packages: Path | str) -> Path:
    """A wheel that asks pip for no other: its environment has the packages that lie in a folder."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(into / wheel.name, "w") as new:
        for name in old.namelist():
            asks = rb"(?m)^Requires-Dist: .*\n" if name.endswith("/METADATA") else rb"(?!)"
            new.writestr(name, re.sub(asks, b"", old.read(name)))
        new.writestr("packages.pth", f"{packages}\n")
    return into / wheel.name


def next_wheel(wheel: Path, into: Path) -> Path:
    """A wheel of version 9.9.9 with another target, and one unit less."""
    other = into / "stoker-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            data, name = old.read(info), info.filename.replace("stoker-0.1.0", "stoker-9.9.9")
            if name.endswith("/METADATA"):
                data = data.replace(b"Version: 0.1.0", b"Version: 9.9.9")
            if name.endswith("stoker@.target"):
                data += b"# newer\n"
            if not name.endswith("stoker.sysusers"):
                new.writestr(name, data)
    return other


def quick_python(into: Path, python: str = sys.executable) -> Path:
    """A Python whose environments have the pip of the tests': to unpack one of their own takes seconds."""
    pip, script = Path(sysconfig.get_paths()["purelib"]) / "pip", into / "python"
    script.write_text(
        f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec {python} "$@"
{python} -m venv --without-pip "$3" && ln -s {pip} "$3"/lib/python*/site-packages/
"""
    )
    script.chmod(0o755)
    return script


class Ground:
    """A directory that Stoker is installed below, as if it were the machine's root."""

    def __init__(self, root: Path, python: str | Path = sys.executable) -> None:
        self.root, self.python = root, python
        root.mkdir(exist_ok=True)
        foreign = root.with_name("foreign")
        foreign.mkdir(exist_ok=True)
        (foreign / "pip.py").write_text("raise SystemExit('this is not the pip of the environment')")
        # Of whoever installs, not of the daemons: it must not count.
        foreign_settings = {"PYTHONPATH": str(foreign), "PIP_USER": "1", "STOKER_TRAIN__STEPZ": "1"}
        self.environ = {**os.environ, **foreign_settings, "PIP_NO_COMPILE": "1"}

    def copy(self, root: Path) -> Ground:
        """A copy, to be removed; its commands are links to the files of this one."""
        shutil.copytree(self.root, root, symlinks=True, copy_function=os.link)
        return Ground(root, self.python)

    def options(self, *words: str | Path) -> list[str | Path]:
        """The installer's arguments."""
        return [*words, "--root", self.root, "--python", self.python]

    def run(self, *words: str | Path, kill: int | str = 0, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs the installer; with `kill`, it is killed before that act, or a command with that word."""
        how = ["-c", KILLER, str(kill), str(self.root), "install"] if kill else [REPO / "scripts/install"]
        done = subprocess.run(
            [sys.executable, *how, *self.options(*words)],
            env=self.environ, capture_output=True, text=True, timeout=4 * LONG_S, check=False,
        )  # fmt: skip
        assert done.returncode in ((0, -9) if kill else (code,)), done.stdout + done.stderr
        return done

    def version(self) -> str:
        """What the command that people call says; the daemons' must start as well."""
        commands = [self.root / "usr/local/bin/stoker", self.root / "opt/stoker/current/bin/stoker"]
        command = next(path for path in commands if path.exists())
        said = subprocess.run([command, "version"], env={}, capture_output=True, text=True, check=True)
        return said.stdout.split()[1]

    def environments(self) -> list[str]:
        """The versions that lie beside each other."""
        return sorted(path.name.partition("-")[0] for path in self.root.glob("opt/stoker/[0-9]*"))

    def files(self) -> dict[str, bytes]:
        """All files outside the environments, but for the lock; links as what they name."""
        found = {}
        for folder, names, files in os.walk(self.root):
            names[:] = [name for name in names if not name[0].isdigit()]
            for name in [*files, *(name for name in names if Path(folder, name).is_symlink())]:
                path = Path(folder, name)
                link = bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
                found[str(path.relative_to(self.root))] = link
        return found


def packages_apart(into: Path) -> Path:
    """The packages of the tests' environment, less Stoker and pip."""
    into.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.lower().startswith(
            ("stoker", "_stoker", "__editable__", "pip", "setuptools", "__pycache__")
        ):
            (into / path.name).symlink_to(path)
    return into
