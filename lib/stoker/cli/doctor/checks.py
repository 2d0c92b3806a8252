"""The checks of `stoker doctor`: a function each, and their table."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import httpx2

from stoker.cli.data.list_source import error_of
from stoker.cli.pipeline.config import findings
from stoker.cli.pipeline.units import as_units_have_it, drop_ins_of, warnings_of
from stoker.cli.worker_jobs import Workers
from stoker.config.document import dotted
from stoker.config.load import load_pipeline
from stoker.config.places import SOURCE, existing, places
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.remote_listing import listing_task, origin_of
from stoker.corpus.staging.disk_contents import measure
from stoker.kit.daemon import LEAST_FILES
from stoker.kit.metrics import PORT_KEYS, Metrics
from stoker.kit.process import family
from stoker.kit.workers.pool import Activity
from stoker.observe.ledger import claimed_bytes, has_room, read_claims, room
from stoker.observe.machine import MemoryWatch
from stoker.observe.status import read_status
from stoker.store.errors import UnavailableError
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.log import read_log
from stoker.store.record import utc_now
from stoker.systemd.drop_ins import differences
from stoker.systemd.units import SYSTEM, account, account_of, allows, users_manager

ANSWERS_S, SOURCE_S = 5.0, 7.0  # that a directory, a driver or a page of metrics has; and a source
BEHIND_S, FAR_BEHIND_S = 60.0, 86_400.0
FEW_INSTANCES = 8  # of inotify: three daemons and what else a person runs take that
GPUS = Activity("gpus", "stoker.observe.gpu_worker", silent_s=ANSWERS_S)


class Finding(NamedTuple):
    """What is found and what to do about it; without `do` the check's own remedy holds."""

    outcome: str  # a key of EXITS
    what: str
    do: str = ""


def told(outcome: str, text: str) -> Finding:
    """Returns a finding by an error's text, whose remedy stands behind its last semicolon."""
    what, _, do = text.rpartition("; ")
    return Finding(outcome, what or do, do if what else "")


def mounts(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields the directories that do not answer, each by its key; a hung one keeps a thread until the end."""
    asking, known = ThreadPoolExecutor(), places(pipeline)
    answers = {key: asking.submit(_look, place) for key, place in known.items()}
    wait(answers.values(), ANSWERS_S)
    for key, answer in answers.items():
        try:
            answer.result(timeout=0)
        except OSError as error:  # TimeoutError is one, without a text
            why = error.strerror or f"does not answer within {ANSWERS_S:.0f} s"
            yield Finding("broken", f"{key}: {known[key]}: {why}")


def _look(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # whose meaning other checks tell
        os.statvfs(place)
        next(place.iterdir(), None)


def configuration(pipeline: Pipeline) -> Iterator[Finding]:
    load_pipeline(pipeline.file)  # now with a look at the file system of `state`
    for outcome, found in zip(("broken", "warning"), findings(pipeline), strict=True):
        yield from (Finding(outcome, f"{dotted(each.path)}: {each.text}") for each in found)


def disks(pipeline: Pipeline) -> Iterator[Finding]:
    claims = [claim for daemon in DAEMONS for claim in read_claims(pipeline.layout, daemon)]
    for key, place in places(pipeline).items():
        disk, _ = measure(existing(place))
        if key != SOURCE and (not has_room(disk) or room(disk, claims) < 0):
            free, needed = format_bytes(disk.free_bytes), format_bytes(claimed_bytes(claims, disk.device))
            yield Finding("broken", f"{key}: {place} has {free} free; the daemons claim {needed}")


def permissions(pipeline: Pipeline) -> Iterator[Finding]:
    uid = _user(pipeline)
    name = account(uid).name
    for key, place in places(pipeline).items():
        there, verb = existing(place), "read" if key == SOURCE else "read, write and create files in"
        if not allows(there, uid, os.R_OK | os.X_OK | (0 if key == SOURCE else os.W_OK)):
            yield Finding("broken", f"{name} may not {verb} {there}, for {key}")
        if key != SOURCE and there == place and place.stat().st_mode & 0o002:
            yield Finding("warning", f"every user may write to {place}", f"chmod o-w {place}")
    files = _below(pipeline.state)
    if others := [path for path, about in files if about.st_uid != uid and path.name != "lost+found"]:
        what = f"files in {pipeline.state} are not {name}'s: {len(others)}, such as {others[0]}"
        yield Finding("warning", what, f"chown -R {name} {pipeline.state}")


def logs(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields each log whose lines do not chain; a damaged record is mended by its daemon."""
    run = pipeline.layout.run(pipeline.train.run)
    for log in (*map(pipeline.layout.events, DAEMONS), run.plan, run.timelines, run.launches, run.runs):
        is_history = log.parent == run.root
        if damage := read_log(log, rotated=not is_history).damage:
            yield Finding("broken" if is_history else "warning", f"{log}: {', '.join(damage)}")


def clock(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields that the clock is behind what was written before: Stoker's code, or a file in state."""
    times = {str(path): about.st_mtime for path, about in _below(pipeline.state)}
    times[__file__] = Path(__file__).stat().st_mtime
    newest = max(times, key=times.__getitem__)
    if (behind_s := times[newest] - time.time()) > BEHIND_S:
        what = f"it is {utc_now()}, {format_duration(behind_s)} before {newest} was written"
        yield Finding("broken" if behind_s > FAR_BEHIND_S else "warning", what)


def inotify(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields that the daemons' user has few instances left, as far as /proc shows what is used."""
    uid, used = _user(pipeline), 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
            used += link.lstat().st_uid == uid and str(link.readlink()) == "anon_inode:inotify"
    files = Path("/proc/sys/fs/inotify/max_user_instances"), Path("/proc/sys/user/max_inotify_instances")
    limit = min((int(file.read_text()) for file in files if file.exists()), default=1 << 30)
    if (left := max(0, limit - used)) < FEW_INSTANCES:
        found = f"{left} inotify instances of {limit:,} are left for {account(uid).name}"
        yield Finding("warning", found, f"sysctl fs.inotify.max_user_instances={max(limit * 4, 1024)}")


def open_files(_pipeline: Pipeline) -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a daemon raises the soft one by itself
    if most < LEAST_FILES:
        yield Finding("broken", f"a process may open {most} files, and a daemon needs {LEAST_FILES}")


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
                httpx2.get(f"http://{about['metrics']}/metrics", timeout=ANSWERS_S, trust_env=False)
            elif port and not about["running"] and (pipeline.has_data or daemon == TRAIN_SUPERVISOR):
                with contextlib.closing(Metrics(daemon)) as trial:
                    trial.serve(pipeline.metrics.address, port)
        except UnavailableError as error:
            yield told("broken", str(error))
        except (OSError, httpx2.HTTPError) as error:
            what = f"http://{about['metrics']}/metrics of {daemon} does not answer: {error}"
            yield Finding("warning", what)


def units(pipeline: Pipeline) -> Iterator[Finding]:
    for manager in (SYSTEM, users_manager()):
        file, owner = manager.file(pipeline.name), account_of(pipeline.state)
        if file.exists() and file.samefile(pipeline.file):
            asked = as_units_have_it(file)
            write = f"stoker units {file} --write{' --user' * manager.is_users}"
            for _, place, text, found in drop_ins_of(asked, manager, owner):
                if differences(found or "", text):
                    yield Finding("warning", f"{place} is not what {file} asks for", write)
            yield from (told("warning", text) for text in warnings_of(asked, manager, owner))


def gpus(pipeline: Pipeline) -> Iterator[Finding]:
    """Yields cards that are lost, that others work on, or that have no driver."""
    with Workers() as workers:
        why = "the GPUs' driver does not answer"
        said = workers.run(GPUS, {"every_s": ANSWERS_S}, why, lambda sample: True)
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if "absent" in said and any(file.read_text().strip() == "0x10de" for file in vendors):  # NVIDIA
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
    if pipeline.has_data and source.spec.is_fetched:
        activity, name = Activity("list", source.spec.lister, silent_s=SOURCE_S), origin_of(source)
        with Workers() as workers:
            said = workers.run(activity, listing_task(source), name, lambda said: said["kind"] != "pinned")
        if said.get("status") == "failed":
            raise error_of(FetchFailed(said["class"], said["reason"]), name)
    return []


def _user(pipeline: Pipeline) -> int:
    """Returns the daemons' user: the owner of the state directory."""
    return pipeline.state.stat().st_uid if pipeline.state.exists() else os.geteuid()


def _below(state: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields what lies in the upper levels of a state directory; its daemons may be at work."""
    for path in itertools.chain(*map(state.glob, ("*", "*/*", "runs/*/*"))):
        with contextlib.suppress(FileNotFoundError):
            yield path, path.lstat()


STATE, ALL = frozenset({"state"}), frozenset({"state", "hot", "warm", SOURCE})
Find = Callable[[Pipeline], Iterable[Finding]]
# A name, a function, what to do about a finding that does not say it itself, and the directories that the
# function touches: while one of them does not answer, the check is skipped.
CHECKS: tuple[tuple[str, Find, str, frozenset[str]], ...] = (  # the last one may take longest
    ("mounts", mounts, "check dmesg, and the server or cable behind it", frozenset()),
    ("config", configuration, "`stoker config check FILE` names the line", ALL),
    ("disks", disks, "free space on that disk", ALL),
    ("permissions", permissions, "correct the owner or the mode", ALL),
    ("logs", logs, "`stoker audit FILE` says what is lost; put back a copy", STATE),
    ("clock", clock, "set the clock before the daemons write more: timedatectl set-ntp true", STATE),
    ("inotify", inotify, "", STATE),
    ("open files", open_files, "raise LimitNOFILE= of the unit, or ulimit -n", frozenset()),
    ("memory", memory, "end what else takes memory, raise the cgroup's limit, or lower shard.workers", STATE),
    ("metrics", metrics, "see the daemon's log, and restart it", STATE),
    ("units", units, "`stoker units FILE` shows what they need", ALL),
    ("gpus", gpus, "check dmesg and nvidia-smi; load the driver again, or restart the machine", STATE),
    ("source", source, "check the network, dataset.source and its token", STATE),
)
