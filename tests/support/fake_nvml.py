"""An NVIDIA driver's library for tests, compiled here; what it answers is in a script that tests change."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.sites import write_site

SOURCE = Path(__file__).with_suffix(".c")
GIB = 1 << 30
# A supervisor finds this driver loaded, though the kernel has none.
LOADED = """
if "stokerd.train_supervisor" in " ".join(sys.orig_argv):
    import stokerd.supervision.jobs.gpus as gpus
    gpus.DRIVERS = (gpus.Path("/proc"),)
"""
# A card that has everything that is asked for.
CARD = {
    "name": "Fake H100",
    "memory": f"{3 * GIB} {80 * GIB}",
    "processes": f"4000000 {2 * GIB}",
    "utilization": 97,
    "temperature": 71,
    "power": 412_500,
    "energy": 9_000_000,
    "sm_clock": 1755,
    "clocks": 0x4 | 0x20,
    "ecc": "5 1",
    "remap": 1,
    "events": "",
}


class FakeDriver:
    """The library below `home`, and its script."""

    def __init__(self, home: Path, without: Sequence[str] = ()) -> None:
        """Compiles the library, without some of its functions."""
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc to build a fake driver: apt install gcc")
        home.mkdir(parents=True, exist_ok=True)
        self.home, self._script, self._lines = home, home / "script", list[str]()
        renamed = [f"-D{function}=without_{function}" for function in without]
        library = ["-shared", "-fPIC", "-o", str(home / "libnvidia-ml.so.1"), str(SOURCE)]
        subprocess.run(["gcc", "-w", *renamed, *library], check=True)
        write_site(home, LOADED)
        self.says()

    @property
    def environ(self) -> dict[str, str]:
        """What has a process use this library."""
        paths = {
            name: os.pathsep.join(filter(None, [str(self.home), os.environ.get(name)]))
            for name in ("LD_LIBRARY_PATH", "PYTHONPATH")
        }
        return {**paths, "FAKE_NVML": str(self._script)}

    @property
    def hangs(self) -> Path:
        """This file is there once a call has hung."""
        return self._script.with_name("script.hangs")

    def cards(self, count: int, **changes: object) -> None:
        """Has so many whole cards; a change of None takes a figure from each."""
        self._lines = [f"count {count}"]
        self.hangs.unlink(missing_ok=True)
        for card in range(count):
            has = {**CARD, "uuid": f"GPU-{card}", **changes}
            self._lines += [f"{card}.{name} {value}" for name, value in has.items() if value is not None]
        self.says()

    def says(self, *lines: str) -> None:
        """Puts lines at the front of the script: the first that names something counts."""
        self._lines[:0] = lines
        self._write()

    def unsays(self, *lines: str) -> None:
        """Takes lines out of the script."""
        self._lines = [line for line in self._lines if line not in lines]
        self._write()

    def errs(self, card: int, xid: int) -> None:
        """Has a card tell of an Xid."""
        self._lines.append(f"xid {card} {xid}")
        self._write()

    def _write(self) -> None:
        new = self._script.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in self._lines))
        new.replace(self._script)
