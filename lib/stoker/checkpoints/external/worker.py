"""Worker: performs all work in the directories of a trainer of the user's own, for the train supervisor.

Each task has "verb", "directory", "pattern" (or null), "checkpoints", "given_up" (directories that hold
checkpoints which were moved away), "replaced" (where one goes that another of its step replaces), "history"
([[timeline, last step or null], ...]), "begun" (Unix time) and "state" (Stoker's own directory).

watch    {"launch", "body", "logs": {name: path}, "heard", "told": [[path, step, at], ...], "look_s",
         "quiet_s", "first_quiet_s", "is_saving"}:
         seals what a running trainer saves, until it is stopped. Lines {"told": [path, step, at]},
         {"heard": [since, until (Unix times), {"step", ...}]} and {"is_saving"} come meanwhile.
look     the same, once and without waiting: no trainer runs; "end" says how it ended. With "origin", that
         path alone is sealed, as the step in its name or 0
         -> {"sealed": numbers, "unsure": paths that may be half}
restore  {"sealed": path or null, "body": its checkpoint.json, "run_id", "at": a new id, "is_first": nothing
         was launched yet, "origin", "unsure", "keep", "keep_bytes"}
         -> {"status": "restored" | "equal" | "none", "path", "aside": paths, "dropped": paths}
            or {"status": "occupied", "path": a match of the glob that another run must have made}

Messages: "sealed" with step (null where nobody knows it), name, path, bytes, seconds and the name of the one
that it "replaced"; "refused" with path, reason and whether "is_newest" of the saves; "taken" with
what was `told` and is sealed or never will be; "trouble" with a message, and "well" after the first look
and once it is over; "progress" every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import OF_ONE_PATH, look_at, shown
from stoker.checkpoints.external.names import step_in
from stoker.checkpoints.external.place import Place
from stoker.checkpoints.external.restoring import drop_asides, put_aside, restore
from stoker.checkpoints.external.step_reports import StepReports
from stoker.checkpoints.external.watch import End, Watch
from stoker.checkpoints.external.whole import why_not_whole
from stoker.kit.workers.child import Report, give_way, heartbeat, run_worker
from stoker.store.direct import Progress
from stoker.store.errors import DataError

SHARE = 50  # listing and stat take at most one part in so many of the time
LONGEST_WAIT_S = 30.0  # between two looks


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Performs the task's verb."""
    place, alive = Place.of(task), heartbeat(report, task["directory"])
    alive(0)
    match task["verb"]:
        case "watch":
            give_way()  # the trainer comes first
            return _watch(task, _watch_of(task, place, report, alive), report, alive)
        case "look":
            return _look(task, _watch_of(task, place, report, alive))
        case _:
            return _restore(task, place, report, alive)


def _watch_of(task: dict[str, Any], place: Place, report: Report, alive: Progress) -> Watch:
    logs = {name: Path(path) for name, path in task["logs"].items()}
    heard = StepReports(map(tuple, task["heard"]))
    quiet = task["quiet_s"], task["first_quiet_s"]
    watch = Watch(place, task["launch"], task["body"], logs, report, alive, heard, *quiet)
    watch.is_saving = task["is_saving"]
    for told in task["told"]:
        watch.hear(*told)
    return watch


def _watch(task: dict[str, Any], watch: Watch, report: Report, alive: Progress) -> dict[str, Any]:
    look_at_s = 0.0
    while not report.stopping:
        while (message := report.receive(max(0.0, look_at_s - time.monotonic()))) is not None:
            if "told" in message:
                watch.hear(*message["told"])
                look_at_s = 0.0
            if "heard" in message:
                watch.heard.append(tuple(message["heard"]))
            watch.is_saving = message.get("is_saving", watch.is_saving)
        began = time.monotonic()
        alive(0)
        watch.scan()
        now = time.monotonic()
        look_at_s = now + next_look_s(task["look_s"], now - began, watch.sealing_s)
    return {}


def next_look_s(look_s: float, took_s: float, sealing_s: float) -> float:
    """Returns the seconds until the next look: a slow listing delays it, a slow copy does not."""
    return max(look_s, min(LONGEST_WAIT_S, SHARE * (took_s - sealing_s)))


def _look(task: dict[str, Any], watch: Watch) -> dict[str, Any]:
    if task["origin"] is not None:
        watch.seal_origin(Path(task["origin"]))
    else:
        watch.scan(End(**task["end"]))
    return {"sealed": watch.sealed, "unsure": list(map(shown, watch.unsure))}


def _restore(task: dict[str, Any], place: Place, report: Report, alive: Progress) -> dict[str, Any]:
    """Restores the path to resume from, and puts aside what the trainer must not take for a newer state."""
    found = list(place.found().paths)
    if task["is_first"] and task["sealed"] is None:  # whatever is there is not of this run
        is_occupied = found and task["origin"] is None
        return {"status": "occupied" if is_occupied else "none", **_told(found[0] if found else None)}
    status, path, step, aside = "none", None, -1, list[Path]()
    if task["sealed"] is not None:
        restored = restore(
            Path(task["sealed"]),
            task["body"],
            place.directory,
            run_id=task["run_id"],
            at=task["at"],
            progress=alive,
        )
        status = "restored" if restored.is_written else "equal"
        path, step = restored.path, int(task["body"]["step"])
        aside = [restored.aside] if restored.aside is not None else []
    given_up, unsure = place.given_up_marks() - {one.mark for one in place.sealed()}, set(task["unsure"])
    for one in found:
        try:
            if one in (path, Path(task["origin"] or "")):
                continue
            if shown(one) in unsure or _is_misleading(one, step, given_up):
                aside.append(put_aside(one, task["at"]))
        except OSError as problem:  # one bad neighbour keeps no trainer from its launch
            if problem.errno not in OF_ONE_PATH:
                raise
            reason = f"it cannot be put aside, and a trainer may take it for its newest: {problem}"
            report("refused", path=shown(one), reason=reason, is_newest=True)
    folders = {one.parent for one in (*found, *aside)}
    budget = {"keep": task["keep"], "keep_bytes": task["keep_bytes"], "begun": place.begun}
    try:
        dropped = drop_asides(folders, but=aside, **budget)
    except OSError as problem:
        if problem.errno not in OF_ONE_PATH:
            raise
        dropped = []  # what lies there too deep to be removed is the user's to remove
    return {"status": status, **_told(path, aside, dropped)}


def _told(path: Path | None, aside: Sequence[Path] = (), dropped: Sequence[Path] = ()) -> dict[str, Any]:
    told = [shown(one) for one in aside], [shown(one) for one in dropped]
    return {"path": path and shown(path), "aside": told[0], "dropped": told[1]}


def _is_misleading(path: Path, step: int, given_up: set[str]) -> bool:
    """Returns whether a trainer that takes its newest checkpoint would take this one, newer or half.

    `step` is -1 where the run goes on from its beginning.
    """
    if step < 0:
        return True
    named = step_in(path.name)
    if named is not None:
        return named > step
    try:
        one = look_at(path)
        return one.mark in given_up or bool(why_not_whole(one))
    except (DataError, FileNotFoundError):
        return False


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
