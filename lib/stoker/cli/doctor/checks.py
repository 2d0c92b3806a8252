"""The checks of `stoker doctor`: a function each, and their table."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import itertools
import os
import resource
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, NamedTuple

from stoker.cli.data.list_source import error_of
from stoker.cli.pipeline.config import findings
from stoker.cli.pipeline.units import as_units_have_it, drop_ins_of, warnings_of
from stoker.cli.worker_jobs import Workers
from stoker.config.document import dotted
from stoker.config.on_disk import RECORDS
from stoker.config.places import SOURCE, places
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.records.receipts import read_listing
from stoker.corpus.source.remote_listing import listing_task, origin_of
from stoker.corpus.staging.disk_contents import measure
from stoker.kit.daemon import LEAST_FILES
from stoker.kit.events import EventTail
from stoker.kit.metrics import PORT_KEYS, Metrics
from stoker.kit.process import family
from stoker.kit.workers.pool import Activity
from stoker.observe.ledger import claimed_bytes, has_room, read_claims
from stoker.observe.machine import MemoryWatch
from stoker.observe.pace import unix
from stoker.observe.status import read_status
from stoker.store.errors import StokerError, UnavailableError
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.log import LogScan
from stoker.store.record import RecordDamaged, read_record, utc_now
from stoker.systemd.drop_ins import differences
from stoker.systemd.units import SYSTEM, account, account_of, allows, users_manager

Outcome = Literal["broken", "warning", "skipped", "ok"]  # from the worst to the best
ANSWERS_S, SOURCE_S = 5.0, 7.0  # that a directory, a driver or a page of metrics has; and a source
BEHIND_S, FAR_BEHIND_S = 60.0, 86_400.0
FEW = {"instances": 8, "watches": 256}  # of inotify: three daemons and what else a person runs take that
GPUS = Activity("gpus", "stoker.observe.gpu_worker", silent_s=ANSWERS_S)
NVIDIA = "0x10de"
NO_TIME = (-1, 5)  # adjtimex(2): not permitted, TIME_ERROR


class Finding(NamedTuple):
    """What is found and what to do about it; without `do` the check's own remedy holds."""

    outcome: Outcome
    what: str
    do: str = ""


def told(outcome: Outcome, text: str) -> Finding:
    """Returns a finding by an error's text, whose remedy stands behind its last semicolon."""
    what, _, do = text.rpartition("; ")
    return Finding(outcome, what or do, do if what else "")


def mounts(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields the directories that do not answer, each by its key; a hung one keeps a thread until the end."""
    asking = ThreadPoolExecutor()
    answers = {key: asking.submit(_failure, place) for key, place in places(pipeline).items()}
    wait(answers.values(), ANSWERS_S)
    for key, answer in answers.items():
        why = answer.result() if answer.done() else f"does not answer within {ANSWERS_S:.0f} s"
        if why:
            yield Finding("broken", f"{key}: {places(pipeline)[key]} {why}")


def _failure(place: Path) -> str:
    try:
        os.statvfs(place)
        next(place.iterdir(), None)
    except OSError as error:
        is_answer = isinstance(error, FileNotFoundError | PermissionError)  # whose meaning other checks tell
        return "" if is_answer else f"fails: {error.strerror}"
    return ""


def configuration(pipeline: Pipeline) -> Iterator[Finding]:
    faults, warnings = findings(pipeline)
    yield from (Finding("broken", f"{dotted(each.path)}: {each.text}") for each in faults)
    yield from (Finding("warning", f"{dotted(each.path)}: {each.text}") for each in warnings)


def disks(pipeline: Pipeline) -> Iterator[Finding]:
    claims = [claim for daemon in DAEMONS for claim in read_claims(pipeline.layout, daemon)]
    for key, place in places(pipeline).items():
        disk, _ = measure(_existing(place))
        claimed = claimed_bytes(claims, disk.device)
        if key != SOURCE and (not has_room(disk) or disk.free_bytes < claimed):
            free, total = format_bytes(disk.free_bytes), format_bytes(disk.total_bytes)
            what = f"{key}: {place} has {free} free of {total}; the daemons claim {format_bytes(claimed)}"
            yield Finding("broken", what)


def permissions(pipeline: Pipeline) -> Iterator[Finding]:
    layout, uid = pipeline.layout, _user(pipeline)
    name = account(uid).name
    for key, place in places(pipeline).items():
        there, verb = _existing(place), "read" if key == SOURCE else "read, write and create files in"
        if not allows(there, uid, os.R_OK | os.X_OK | (0 if key == SOURCE else os.W_OK)):
            yield Finding("broken", f"{name} may not {verb} {there}, for {key}")
        if key != SOURCE and there == place and place.stat().st_mode & stat.S_IWOTH:
            yield Finding("warning", f"every user may write to {place}", f"chmod o-w {place}")
    for folder in filter(Path.exists, map(layout.requests, DAEMONS)):
        if folder.stat().st_mode & 0o2070 != 0o2070:
            what = f"members of the group cannot file requests in {folder}"
            yield Finding("warning", what, f"chmod 2770 {folder}")
    files = _below(pipeline.state).items()
    if others := [path for path, about in files if about.st_uid != uid and path.name != "lost+found"]:
        what = f"files in {pipeline.state} are not {name}'s: {len(others)}, such as {others[0]}"
        yield Finding("warning", what, f"chown -R {name} {pipeline.state}")


def logs(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields each log whose lines do not chain, and each record that does not sum."""
    run = pipeline.layout.run(pipeline.train.run)
    for log in (*map(pipeline.layout.events, DAEMONS), run.plan, run.timelines, run.launches, run.runs):
        is_history = log.parent == run.root
        for _ in (scan := LogScan(log, rotated=not is_history)):
            pass
        if scan.damage:
            yield Finding("broken" if is_history else "warning", f"{log}: {', '.join(scan.damage)}")
    for path in itertools.chain(*map(pipeline.state.glob, RECORDS)):
        with contextlib.suppress(FileNotFoundError):  # its daemon has just removed it
            try:
                if path.suffix == ".json" and path.name != "checkpoint.json":  # which is none
                    read_record(path)
            except RecordDamaged as error:
                yield told("warning", str(error))


def clock(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields that the clock is behind what was written before: Stoker's code, a file in state, an event."""
    files = {**_below(pipeline.state), Path(__file__): Path(__file__).stat()}
    times = {str(path): about.st_mtime for path, about in files.items()}
    with contextlib.suppress(StokerError, LookupError, TypeError, ValueError):  # damage is another check's
        times["the newest event"] = unix(EventTail(pipeline.layout).new()[-1]["time"])
    newest = max(times, key=times.__getitem__)
    if (behind_s := times[newest] - time.time()) > BEHIND_S:
        what = f"it is {utc_now()}, {format_duration(behind_s)} before {newest} was written"
        yield Finding("broken" if behind_s > FAR_BEHIND_S else "warning", what)
    # No finding: where a host keeps the time of its guests, they have no time service of their own.
    is_kept = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256)) not in NO_TIME
    yield Finding("ok", "a time service keeps it" if is_kept else "the kernel knows of no time service")


def inotify(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields the limits that the daemons' user has nearly reached, as far as /proc shows what is used."""
    uid, used = _user(pipeline), dict.fromkeys(FEW, 0)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
            for link in (process / "fd").iterdir() if process.stat().st_uid == uid else ():
                if str(link.readlink()) == "anon_inode:inotify":
                    used["instances"] += 1
                    used["watches"] += (process / "fdinfo" / link.name).read_text().count("inotify wd:")
    for what, count in used.items():
        files = Path(f"/proc/sys/fs/inotify/max_user_{what}"), Path(f"/proc/sys/user/max_inotify_{what}")
        limit = min((int(file.read_text()) for file in files if file.exists()), default=1 << 30)
        if (left := max(0, limit - count)) < FEW[what]:
            found = f"{left} inotify {what} of {limit:,} are left for {account(uid).name}"
            yield Finding("warning", found, f"sysctl fs.inotify.max_user_{what}={max(limit * 4, 1024)}")


def open_files(_pipeline: Pipeline) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a daemon raises the soft one by itself
    if hard < LEAST_FILES:
        what = f"a process may open {soft} files, at most {hard}, and a daemon needs {LEAST_FILES}"
        yield Finding("broken", what)


def memory(pipeline: Pipeline) -> Iterator[Finding]:
    left, workers = MemoryWatch().sample().headroom_bytes, pipeline.shard.workers
    is_taken = read_status(pipeline.layout)[STAGE_SHARD]["running"]  # by its builders
    need = pipeline.shard.memory.hard * (1 if workers == "auto" or is_taken else workers)
    if pipeline.has_data and left < need:
        what = f"{format_bytes(left)} can be taken until the kernel kills, and builders may take"
        yield Finding("warning", f"{what} {format_bytes(need)} (shard.workers, shard.memory.hard)")


def metrics(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields a page that does not answer, of a running daemon, and a port that is taken, of another."""
    for daemon, about in read_status(pipeline.layout).items():
        port = getattr(pipeline.metrics.ports, PORT_KEYS[daemon])
        try:
            if about["metrics"]:
                page = http.client.HTTPConnection(about["metrics"], timeout=ANSWERS_S)
                page.request("GET", "/metrics")
                page.getresponse().close()
            elif port and not about["running"] and (pipeline.has_data or daemon == TRAIN_SUPERVISOR):
                trial = Metrics(daemon)
                trial.serve(pipeline.metrics.address, port)
                trial.close()
        except UnavailableError as error:
            yield told("broken", str(error))
        except (OSError, http.client.HTTPException) as error:
            yield Finding(
                "warning", f"http://{about['metrics']}/metrics of {daemon} does not answer: {error}"
            )


def units(pipeline: Pipeline) -> Iterator[Finding]:
    for manager in (SYSTEM, users_manager()):
        file, owner = manager.file(pipeline.name), account_of(pipeline.state)
        if not (file.exists() and file.samefile(pipeline.file)):
            continue
        asked = as_units_have_it(file)
        for _, place, text, found in drop_ins_of(asked, manager, owner):
            if lines := differences(found or "", text):
                how = "is missing" if found is None else f"differs from {file} in {len(lines)} lines"
                write = f"stoker units {file} --write{' --user' * manager.is_users}"
                yield Finding("warning", f"{place} {how}", write)
        yield from (told("warning", text) for text in warnings_of(asked, manager, owner))


def gpus(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields cards that are lost, that others work on, or that have no driver."""
    with Workers() as workers:
        task = {"every_s": ANSWERS_S}
        said = workers.run(GPUS, task, "the GPUs' driver does not answer", lambda sample: True)
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if "absent" in said and any(file.read_text().strip() == NVIDIA for file in vendors):
        yield Finding("broken", f"there is an NVIDIA card, but no driver: {said['absent']}")
    pid = read_status(pipeline.layout)[TRAIN_SUPERVISOR]["pid"]
    ours = {str(each.pid) for each in family(pid)} if pid else set[str]()
    for card in said.get("cards", ()):
        if card["is_lost"]:
            yield Finding("broken", f"GPU {card['index']} {card['name']} does not answer")
        for each, size in (card["figures"].get("processes") or {}).items():
            if each not in ours:
                what = f"process {each} holds {format_bytes(size)} of GPU {card['index']}, and is not ours"
                yield Finding("warning", what, f"ps -fp {each}; end it, or train on another card")


def source(pipeline: Pipeline) -> list[Finding]:
    """Raises the error with which the source cannot be listed; waits only for the first files."""
    source = pipeline.dataset.source
    if not pipeline.has_data or not source.spec.is_fetched:
        return []
    listing, name = read_listing(pipeline.layout, pipeline.dataset.name), origin_of(source)
    known = listing.revision or None if listing is not None and listing.origin == name else None
    activity = Activity("list", source.spec.lister, silent_s=SOURCE_S)
    with Workers() as workers:
        task = listing_task(source, known=known)
        said = workers.run(activity, task, name, lambda message: message["kind"] != "pinned")
    if said.get("status") == "failed":
        raise error_of(FetchFailed(said["class"], said["reason"]), name)
    return []


def _user(pipeline: Pipeline) -> int:
    """Returns the daemons' user: the owner of the state directory."""
    return pipeline.state.stat().st_uid if pipeline.state.exists() else os.geteuid()


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _below(state: Path) -> dict[Path, os.stat_result]:
    """Returns what lies in the upper levels of a state directory; its daemons may be at work."""
    found = dict[Path, os.stat_result]()
    for path in itertools.chain(*map(state.glob, ("*", "*/*", "runs/*/*"))):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.lstat()
    return found


STATE, ALL = frozenset({"state"}), frozenset({"state", "hot", "warm", SOURCE})


class Check(NamedTuple):
    """A check: its name, its function, and what to do about a finding that does not say it itself.

    `reads` are the directories that it touches: while one of them does not answer, it is skipped.
    """

    name: str
    find: Callable[[Pipeline], Iterable[Finding]]
    do: str
    reads: frozenset[str] = STATE


CHECKS = (  # the last one may take longest
    Check("mounts", mounts, "check dmesg, and the server or cable behind it", frozenset()),
    Check("config", configuration, "`stoker config check FILE` names the line", ALL),
    Check("disks", disks, "free space on that disk", ALL),
    Check("permissions", permissions, "correct the owner or the mode", ALL),
    Check("logs", logs, "`stoker audit FILE` says what is lost; put back a copy"),
    Check("clock", clock, "set the clock before the daemons write more: timedatectl set-ntp true"),
    Check("inotify", inotify, ""),
    Check("open files", open_files, "raise LimitNOFILE= of the unit, or ulimit -n", frozenset()),
    Check("memory", memory, "end what else takes memory, raise the cgroup's limit, or lower shard.workers"),
    Check("metrics", metrics, "see the daemon's log, and restart it"),
    Check("units", units, "`stoker units FILE` shows what they need", ALL),
    Check("gpus", gpus, "check dmesg and nvidia-smi; load the driver again, or restart the machine"),
    Check("source", source, "check the network, dataset.source and its token"),
)
