"""What the units take from a pipeline's file: the drop-in of each daemon, and how one on disk differs.

A daemon holds the one that it runs with against its file.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from stoker.config.schema import Pipeline
from stoker.config.schema_train import External
from stoker.store.layout import DOWNLOAD_WATCHDOG, TRAIN_SUPERVISOR
from stoker.systemd.units import NO_TOKEN, SYSTEM, Account, Manager, account_of, manager_of_unit, unit_name

ACCOUNT = "stoker"  # whom the shipped units run as
TOKEN_FILE = "hub-token"  # noqa: S105 - beside the pipeline file, where token_file names no other
STOP_MARGIN_S = 60  # beyond supervise.stop_time: the supervisor's own records, and its guard's last look
# Mount points that hold more than a disk's data: of these the pipeline's directory alone is opened.
_SHARED = frozenset(map(Path, ("/", "/etc", "/home", "/opt", "/root", "/run", "/usr", "/var", "/var/lib")))
_PLAIN = re.compile(r"[\w/.@+,:=-]+", re.ASCII)
_SOURCE = re.compile(r"^# What this unit takes from (.*), by `stoker units ", re.MULTILINE)
_DIGEST = re.compile(r"^# sha256 of the lines below: ([0-9a-f]{64})$", re.MULTILINE)


def drop_in(
    pipeline: Pipeline,
    daemon: str,
    account: Account | None,
    manager: Manager = SYSTEM,
    mounts: Collection[Path] = (),
) -> str:
    """Returns the text of a daemon's drop-in; `account` is None where the shipped units' own is meant.

    Of hot and warm it opens the mount points among `mounts`: in the unit's own view, a directory below one
    would go on being that of the old mount where the disk is mounted anew.
    """
    body = "\n".join(_lines(pipeline, daemon, account, manager, mounts)) + "\n"
    file, unit = manager.file(pipeline.name), unit_name(daemon, pipeline.name)
    return (
        f"# What this unit takes from {file}, by `stoker units {file} --write`.\n"
        f"# What you add belongs into a drop-in beside it: systemctl edit {unit}\n"
        f"# sha256 of the lines below: {hashlib.sha256(body.encode()).hexdigest()}\n{body}"
    )


def opened(text: str) -> set[Path]:
    """Returns the paths that a drop-in opens: among them mount points of disks that may be away now."""
    lines = [line for line in text.splitlines() if line.startswith("ReadWritePaths=")]
    with contextlib.suppress(ValueError):  # a quote without its end: edited
        words = [word for line in lines for word in shlex.split(line.partition("=")[2])]
        return {Path(word.removeprefix("-").replace("%%", "%")) for word in words}
    return set()


def is_edited(text: str) -> bool:
    """Returns whether somebody has changed a drop-in since `stoker units` wrote it, or written it by hand."""
    found = _DIGEST.search(text)
    return found is None or hashlib.sha256(text[found.end() + 1 :].encode()).hexdigest() != found[1]


def written_for(text: str) -> str:
    """Returns the pipeline file that a drop-in was written for; empty where it does not say."""
    found = _SOURCE.search(text)
    return found[1] if found else ""


def differences(found: str, wanted: str) -> list[str]:
    """Returns the lines that a drop-in on disk has (-) and should have (+), comments aside."""
    import difflib  # noqa: PLC0415 - 200 KB that a daemon needs only in an error

    before, after = _settings(found), _settings(wanted)
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _settings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and line[0] != "#"]


def _lines(
    pipeline: Pipeline, daemon: str, account: Account | None, manager: Manager, mounts: Collection[Path]
) -> Iterator[str]:
    if not manager.is_users:
        yield from _unit_lines(pipeline)
    yield "[Service]"
    if account is not None and account.name != ACCOUNT and not manager.is_users:
        yield "# The owner of the state directory."
        yield f"User={account.name}"
        yield f"Group={account.group}"
    if not manager.is_users:
        yield "# One that is not there is no reason to stay down: the daemon itself says so, and waits."
        yield f"ReadWritePaths={_words('-', _written(pipeline, mounts))}"
    yield "# Proxies (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE) and overrides (STOKER_...), a line each."
    yield f"EnvironmentFile=-{_escaped(manager.file(pipeline.name).with_suffix('.env'))}"
    if daemon == DOWNLOAD_WATCHDOG and pipeline.dataset.source.spec.has_token:
        token = pipeline.dataset.source.token_file or manager.files / TOKEN_FILE
        yield "# Its file may be readable by root alone. Without it the default counts: no token."
        yield f"LoadCredential=hub-token:{_escaped(token)}"
        yield f"SetCredential=hub-token:{NO_TOKEN}"
    if daemon == TRAIN_SUPERVISOR:
        stop_s = round(pipeline.supervise.stop_time) + STOP_MARGIN_S
        yield f"# supervise.stop_time and {STOP_MARGIN_S} s: the trainer seals a checkpoint before it goes."
        yield f"TimeoutStopSec={stop_s}"
        yield f"TimeoutAbortSec={stop_s}"
        if pipeline.train.command is not None and not manager.is_users:
            yield from _relaxations(pipeline, account)


def _unit_lines(pipeline: Pipeline) -> Iterator[str]:
    """Yields the mounts: without state or hot nothing can begin; the others may be away, and come back."""
    yield "[Unit]"
    needed = [pipeline.state, pipeline.hot] if pipeline.has_data else [pipeline.state]
    yield f"RequiresMountsFor={_words('', needed)}"
    if pipeline.warm is not None or pipeline.dataset.source.path is not None:
        yield "# Warm or the source may lie on the network: looked for first, but not needed."
        yield "After=remote-fs.target"


def _written(pipeline: Pipeline, mounts: Collection[Path]) -> list[Path]:
    disks = [pipeline.hot if pipeline.has_data else None, pipeline.warm]
    found = [_mount_point(place, mounts) for place in disks if place is not None]
    return list(dict.fromkeys([pipeline.state, *found]))


def _mount_point(place: Path, mounts: Collection[Path]) -> Path:
    """Returns the mount point of a disk's directory; the directory where others have their data there too."""
    point = next((each for each in (place, *place.parents) if each in mounts), place)
    return place if point in _SHARED else point


def _relaxations(pipeline: Pipeline, account: Account | None) -> Iterator[str]:
    """Yields what a trainer of the user's own may do beyond the shipped sandbox."""
    written = list(_trainers_directories(pipeline))
    if written:
        yield "# A trainer of your own writes where it runs, and its checkpoints."
        yield f"ReadWritePaths={_words('-', written)}"
    if account is None or account.name == ACCOUNT:
        yield "# Its libraries' caches: the account's own home cannot be written."
        yield f"Environment={_words('HOME=', [pipeline.state])}"
    else:
        yield "# Its libraries' caches."
        yield f"ReadWritePaths={_words('-', [account.home])}"
    temporary = ("/tmp", "/var/tmp")  # noqa: S108 - a trainer's
    if any(path.is_relative_to(place) for path in written for place in temporary):
        yield "# It runs below /tmp, and a /tmp of its own would be empty."
        yield "PrivateTmp=no"


def _trainers_directories(pipeline: Pipeline) -> Iterator[Path]:
    """Yields where a trainer of the user's own runs, if the file names it, and where a whole glob begins."""
    external = pipeline.train.external or External()
    if external.directory is not None:  # the pipeline file's own is nobody's to write in
        yield external.directory
    if external.checkpoints is not None and external.checkpoints.startswith("/"):
        plain = itertools.takewhile(lambda part: "*" not in part, Path(external.checkpoints).parts[:-1])
        yield Path(*plain)


def _words(prefix: str, paths: list[Path]) -> str:
    """Returns paths as words of a unit's line, each with the prefix."""
    return " ".join(_quoted(prefix + _escaped(path)) for path in paths)


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word.replace("%%", "")):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def unit_differs(daemon: str, pipeline: Pipeline) -> tuple[Path, list[str]] | None:
    """Returns a drop-in and the lines in which it differs from the file; None where it agrees.

    Only a daemon that systemd runs as its shipped unit has one, over the file that this unit reads.
    """
    try:
        manager = manager_of_unit(daemon, pipeline.name, Path("/proc/self/cgroup").read_text())
    except OSError:
        return None
    if manager is None or manager.file(pipeline.name) != pipeline.file:
        return None
    path = manager.drop_in(daemon, pipeline.name)
    try:
        found = path.read_text(errors="replace")
    except FileNotFoundError:
        found = ""
    except OSError as error:
        return path, [str(error)]
    wanted = drop_in(pipeline, daemon, account_of(pipeline.state), manager, opened(found))
    lines = differences(found, wanted)
    return (path, lines) if lines else None
