"""Installing and removing, in an order that a kill at any moment leaves whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from stoker.install import environment, steps
from stoker.install.places import Places
from stoker.install.steps import CONFIG, DATA, UNAVAILABLE, Refused


def read_record(path: Path) -> dict[str, Any] | None:
    """Returns the prefix, and for each laid file the digests of what may lie there; None where nothing is."""
    try:
        record: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    except ValueError as error:
        raise Refused(
            DATA, f"{path} is damaged: remove it, and install again at the --prefix of before"
        ) from error
    return record


def install(places: Places, wheel: Path, python: str, name: str) -> None:
    """Puts a wheel in force; raises Refused, with all as it was, where that cannot be."""
    known: dict[str, list[str]] = (read_record(places.record) or {}).get("files", {})
    place, before = places.home / name, places.in_force()
    try:
        _prepare(places, place, wheel, python)
    except Refused:
        environment.remove_unused(places.home, before)
        raise
    files = dict(places.files(place / "deploy"))
    new = {path: [steps.digest(data)] for path, data in files.items()}
    # Both, before the first file is laid: after a kill the next run knows all that may lie there.
    _write_record(places, {**known, **{path: [*known.get(path, []), *new[path]] for path in new}})
    if before != name:
        print(f"put {name} in force in place of {before or 'none'}")
    steps.link(places.current, name)
    for path, data in files.items():
        _lay(places.on_disk(path), data, known.get(path, []))
    steps.remove(places.on_disk(path) for path in known if path not in new)
    for path in {**known, **new}:
        steps.clean(places.on_disk(path))
    for link, target in places.links.items():
        if not os.path.lexists(link):
            steps.link(link, target)
        elif not link.is_symlink() or str(link.readlink()) != target:
            print(f"{link} is not ours and is left: call {target}, or remove it and run this again")
    _write_record(places, new)
    _tell_systemd(places, "systemd-sysusers stoker.conf", "systemd-tmpfiles --create stoker.conf")
    environment.remove_unused(places.home, name)


def require_place(places: Places, python: str) -> None:
    """Raises Refused where those who are to run what is installed could not reach it."""
    if places.is_user and os.geteuid() == 0 != Path.home().stat().st_uid:
        raise Refused(CONFIG, f"{Path.home()} is another user's: run this as that user, without sudo")
    if places.is_user or places.root != Path("/"):
        return
    for path, option in ((places.home, "--prefix"), (Path(python), "--python, as /usr/bin/python3")):
        closed = next((one for one in path.parents if one.exists() and not one.stat().st_mode & 0o001), None)
        if closed is not None:
            why = f"{path} lies below {closed}, which the daemons' account stoker may not enter"
            raise Refused(CONFIG, f"{why}: name another {option}")


def _prepare(places: Places, place: Path, wheel: Path, python: str) -> None:
    """Makes the environment, whose code must be able to read each pipeline's state; raises Refused."""
    if not (place / environment.COMPLETE).exists():
        if place.exists():
            print(f"remove {place}, which an interrupted installation has left half made")
            shutil.rmtree(place)
        environment.make(place, wheel, python)
    if files := sorted(places.on_disk(places.pipelines).glob("*.yaml")):
        checked = steps.run(place / "bin/python", "-P", "-m", "stoker.config.on_disk", *files)
        print(checked.stdout, end="")
        if checked.returncode:  # a newer Stoker wrote it
            raise Refused(CONFIG, checked.stderr.strip())


def _lay(path: Path, data: bytes, known: list[str]) -> None:
    found = path.read_bytes() if path.is_file() else None
    if found not in (None, data) and steps.digest(found) not in known:
        print(f"{path} was edited and is replaced: changes to units belong in drop-ins, see systemctl edit")
    if found != data:
        print(f"write {path}")
        steps.write(path, data)


def uninstall(places: Places) -> None:
    """Removes all but pipeline files, drop-ins, data and the account; raises Refused."""
    for place in environment.environments(places.home):
        if pids := environment.users_of(place):
            text = f"process {pids[0]} works from {place}: stop the pipelines and commands first"
            raise Refused(UNAVAILABLE, f"{text}, as with systemctl disable --now stoker@NAME.target")
    files = list(map(places.on_disk, (read_record(places.record) or {}).get("files", {})))
    steps.remove(files)
    for file in files:
        steps.clean(file)
    steps.remove(one for one in sorted(places.enabled.glob("*.wants/stoker*")) if not one.exists())
    _tell_systemd(places)
    links = {**places.links, places.current: places.in_force()}
    steps.remove(map(steps.part_of, links))
    steps.remove(link for link, to in links.items() if link.is_symlink() and str(link.readlink()) == to)
    environment.remove_unused(places.home, None)
    shutil.rmtree(places.record.parent)
    print("pipeline files and data are left" + ("" if places.is_user else ", and the account stoker"))


def _write_record(places: Places, files: dict[str, list[str]]) -> None:
    record = {"v": 1, "prefix": places.prefix, "files": files}
    steps.write(places.record, json.dumps(record, indent=1).encode())
    os.sync()  # the record before what it speaks of, and all of it before an older environment goes


def _tell_systemd(places: Places, *first: str) -> None:
    if places.root != Path("/"):
        return
    of_machine = (*first, "journalctl --update-catalog", "systemctl daemon-reload")
    for command in ("systemctl --user daemon-reload",) if places.is_user else of_machine:
        print(f"run {command}", flush=True)
        if (done := steps.run("env", *command.split())).returncode:  # env says it too where there is none
            print(
                f"that failed, as it does where no systemd runs; else run it by hand: {done.stderr.strip()}"
            )
