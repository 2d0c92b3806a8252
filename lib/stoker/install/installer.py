"""Installing and removing, step by step."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from stoker.install import steps as at
from stoker.install.checks import PAGES, environments, is_set, require_place, users_of
from stoker.install.places import Places
from stoker.install.steps import CONFIG, DATA, UNAVAILABLE, Record, Refused, Steps
from stoker.install.wheel import NO_VENV, Wheel

COMPLETE = "complete"  # the last file of an environment
_DAEMONS = "import stokerd.download_watchdog, stokerd.stage_shard, stokerd.train_supervisor"


class Installer:
    """An installation at its places: `install` also upgrades and mends, `uninstall` leaves all data."""

    def __init__(self, places: Places, *, is_dry: bool) -> None:
        self.places, self.steps = places, Steps(is_dry)
        self.current = places.home / "current"

    def install(self, path: Path, python: str) -> None:
        """Puts a wheel in force; raises Refused, with all as it was, where that cannot be."""
        wheel, places = Wheel.read(path), self.places
        version = self.steps.command(python, "-c", "import sys; print(sys.version)").stdout
        name = f"{wheel.version}-{at.digest(f'{wheel.digest} {python} {version}'.encode())[:8]}"
        require_place(places, python)
        files = dict(places.files(wheel.deploy))
        new = Record(str(places.prefix), {str(path): [at.digest(data)] for path, data in files.items()})
        with self.steps.locked(places.record.with_name(".lock")):
            before = Record.read(places.record)
            known = before.files if before else {}
            if not self.steps.is_dry:
                both = {
                    file: [*known.get(file, []), *new.files.get(file, [])] for file in {**known, **new.files}
                }
                Record(new.prefix, both).write(places.record)
            try:
                self._make_environment(places.home / name, wheel, python)
                self._require_readable_data(places.home / name / "bin/python")
            except Refused:
                self._undo(before)
                raise
            if self._in_force() != name:
                text = f"put {name} in force in place of {self._in_force() or 'none'}"
                self.steps.do(text, at.link, self.current, name)
            self._lay(files, known)
            for link, target in self._links().items():
                self._link(link, target)
            self._sweep([self.current, *self._links(), *map(places.on_disk, files)])
            self._take_away([file for file in known if file not in new.files], known)
            if not self.steps.is_dry:
                new.write(places.record)
            self._tell_systemd("systemd-sysusers stoker.conf", "systemd-tmpfiles --create stoker.conf")
            self._remove_unused(name)
        if not self.steps.is_dry:
            self._tell_next(wheel.deploy)

    def uninstall(self) -> None:
        """Removes all but pipeline files, data, the account and files that were edited; raises Refused."""
        places = self.places
        with self.steps.locked(places.record.with_name(".lock")):
            before = Record.read(places.record)
            for place in environments(places.home):
                if pids := users_of(place):
                    text = f"process {pids[0]} works from {place}: stop the pipelines and commands first"
                    raise Refused(UNAVAILABLE, f"{text}, as with systemctl disable --now stoker@NAME.target")
            files = before.files if before else {}
            self._take_away(files, files)
            for link in sorted(places.enabled.glob("*.wants/stoker*")):
                if link.is_symlink() and not places.on_disk(Path(os.readlink(link))).exists():  # noqa: PTH115
                    self.steps.do(f"remove {link}", link.unlink)
            self._tell_systemd()
            for link, target in {**self._links(), self.current: self._in_force()}.items():
                if link.is_symlink() and str(link.readlink()) == target:
                    self.steps.do(f"remove {link}", link.unlink)
            self._sweep([self.current, *self._links()])
            self._remove_unused(None)
            self._remove_home()
            self.steps.do(f"remove {places.record.parent}", shutil.rmtree, places.record.parent)
        print("pipeline files and data are left" + ("" if places.is_user else ", and the account stoker"))

    def _links(self) -> dict[Path, str]:
        pages = {self.places.home / page: f"current/deploy/{page}" for page in PAGES}
        return {self.places.command: str(self.current / "bin/stoker"), **pages}

    def _sweep(self, paths: Iterable[Path]) -> None:
        """Removes what a kill between writing and renaming has left."""
        for part in map(at.part_of, paths):
            if os.path.lexists(part) and not self.steps.is_dry:
                part.unlink()

    def _in_force(self) -> str | None:
        return self.current.readlink().name if self.current.is_symlink() else None

    def _make_environment(self, place: Path, wheel: Wheel, python: str) -> None:
        if (place / COMPLETE).exists():
            return
        if place.exists():
            text = f"remove {place}, which an interrupted installation has left half made"
            self.steps.do(text, at.remove_environment, place, COMPLETE)
        text = f"make {place}; torch may be a long download"
        self.steps.do(text, self._fill_environment, place, wheel, python)

    def _fill_environment(self, place: Path, wheel: Wheel, python: str) -> None:
        must, constraints = self.steps.must, place / "constraints.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        must(UNAVAILABLE, NO_VENV, python, "-m", "venv", place)
        constraints.write_bytes(wheel.deploy["constraints.txt"])
        index = os.environ.get("STOKER_TORCH_INDEX")
        options = ["--quiet", "--disable-pip-version-check", "--no-user"]
        options += ["--extra-index-url", index] if index else []
        own = place / "bin/python"
        remedy = "look at the network and the disk, then run this again"
        must(UNAVAILABLE, remedy, own, "-m", "pip", "install", *options, "-c", constraints, wheel.path)
        must(DATA, "the wheel is broken, build it again", own, "-P", "-c", _DAEMONS)
        packaged = next(place.glob("lib/python*/site-packages/stoker/deploy"))
        (place / "deploy").symlink_to(packaged.relative_to(place))
        os.sync()  # before the file that says that all of it is there
        at.write(place / COMPLETE, b"")

    def _require_readable_data(self, python: Path) -> None:
        """Has the new code look at each pipeline's state; raises Refused where a newer Stoker wrote it."""
        files = sorted(self.places.on_disk(self.places.pipelines).glob("*.yaml"))
        if not files or (self.steps.is_dry and not python.exists()):
            return
        done = self.steps.command(python, "-P", "-m", "stoker.config.on_disk", *files)
        print(done.stdout, end="")
        if done.returncode:
            raise Refused(CONFIG, done.stderr.strip())

    def _lay(self, files: Mapping[Path, bytes], known: Mapping[str, list[str]]) -> None:
        """Lays the files; keeps an edited one, and lays the new content beside it."""
        for path, data in files.items():
            there, wanted = self.places.on_disk(path), at.digest(data)
            found, beside = at.digest_of(there), at.beside(there)
            if found in (None, wanted, *known.get(str(path), [])):
                if found != wanted:
                    self.steps.do(f"write {there}", at.write, there, data)
                if beside.exists():
                    self.steps.do(f"remove {beside}", beside.unlink)
            elif at.digest_of(beside) != wanted:
                self.steps.do(f"keep {there}, which was edited, and write {beside}", at.write, beside, data)

    def _take_away(self, paths: Iterable[str], known: Mapping[str, list[str]]) -> None:
        """Removes files that were laid; leaves those that were edited."""
        for name in paths:
            there = self.places.on_disk(Path(name))
            is_edited = at.digest_of(there) not in (None, *known[name])
            if is_edited:
                print(f"{there} was edited and is left")
            for path in (there, at.beside(there), at.part_of(there)):
                if path.is_file() and not (is_edited and path == there):
                    self.steps.do(f"remove {path}", path.unlink)

    def _link(self, link: Path, target: str) -> None:
        if not os.path.lexists(link):
            self.steps.do(f"link {link} to {target}", at.link, link, target)
        elif not link.is_symlink() or str(link.readlink()) != target:
            print(f"{link} is not ours and is left: call {target}, or remove it and run this again")

    def _tell_systemd(self, *first: str) -> None:
        if self.places.root != Path("/"):
            return
        of_machine = (*first, "journalctl --update-catalog", "systemctl daemon-reload")
        for command in ("systemctl --user daemon-reload",) if self.places.is_user else of_machine:
            self.steps.do(f"run {command}", self._tell, command)

    def _tell(self, command: str) -> None:
        program, *words = command.split()
        is_up = program != "systemctl" or Path("/run/systemd/system").is_dir()  # as sd_booted(3) asks
        if not is_up or shutil.which(program) is None:
            print("systemd does not run here; `stoker run` needs none")
        elif (done := self.steps.command(program, *words)).returncode:
            print(f"that failed; correct it and run it by hand: {done.stderr.strip()}")

    def _remove_unused(self, keep: str | None) -> None:
        """Removes the environments but one and those that a process works from."""
        for place in environments(self.places.home):
            if place.name == keep:
                continue
            if pids := users_of(place):
                print(f"{place} is kept for process {pids[0]}; a later run of this removes it")
            else:
                self.steps.do(f"remove {place}", at.remove_environment, place, COMPLETE)

    def _undo(self, before: Record | None) -> None:
        if self.steps.is_dry:
            return
        self._remove_unused(self._in_force())
        if before is None:
            shutil.rmtree(self.places.record.parent)
        else:
            before.write(self.places.record)
        self._remove_home()

    def _remove_home(self) -> None:
        if not self.steps.is_dry:
            with contextlib.suppress(OSError):  # not empty
                self.places.home.rmdir()

    def _tell_next(self, deploy: Mapping[str, bytes]) -> None:
        user = "--user " if self.places.is_user else ""
        print(f"start a pipeline: systemctl {user}enable --now stoker@NAME.target")
        print(f"after an upgrade: stoker reload {self.places.pipelines}/NAME.yaml (training goes on)")
        print(f"remove it: {self.current}/bin/python -m stoker.install {user}--uninstall")
        offered = deploy.get("systemd/stoker.sysctl", b"").decode()
        asked = [line for line in offered.splitlines() if "=" in line and not line.startswith("#")]
        if not self.places.is_user and not all(map(is_set, asked)):
            print(
                "settings that would help this host; to take them, put them into /etc/sysctl.d/60-stoker.conf"
            )
            print(f"and run sysctl --system:\n{offered}", end="")
