"""The bundle of `stoker doctor`: what a bug report needs, without secrets and home directories."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path

from stoker.config.schema import Pipeline
from stoker.config.show import MASK, effective_yaml
from stoker.corpus.http.hub import hub_token
from stoker.kit.events import EventTail
from stoker.kit.exec import launch_command
from stoker.kit.lock import read_contents
from stoker.observe.status import read_status
from stoker.observe.verdict import verdict
from stoker.store.errors import StokerError
from stoker.store.files import write_atomic
from stoker.store.layout import DAEMONS
from stoker.supervise.outlook import gather
from stoker.systemd.units import unit_name

EVENTS, LINES, TAIL_BYTES = 300, 500, 256 << 10
JOURNAL_S = 5.0
SHORTEST = 6  # a shorter value of an environment variable may be any word
NAMED = r"token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
_SECRET_NAME = re.compile(NAMED, re.IGNORECASE)
_HOMES = r"/(?:home|Users)/[^/\s\"'\\:,]+|/root"
_SECRETS = tuple(  # what stays, then what is masked
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://)[^\s/\"'\\]+(?=@)",
        r"(://[^\s\"'\\?]*\?)[^\s\"'\\]+",
        r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}",
        r"(\b)hf_[a-z0-9]{8,}",
        # name=value, "name": "value", --name value; a number, true or null under such a name is no secret
        rf"((?:{NAMED})[\\\"']*\s*[:=]\s*[\\\"']*)(?!(?:null|true|false|\d+)\b)[^\s\"'\\,;&}}\]]+",
        rf"(--[\w-]*(?:{NAMED})[\"']?,?\s+[\"']?)[^\s\"',]+",
    )
)


def mask(text: str, *secrets: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the text without these secrets, those of the environment, and what looks like one."""
    known = {*secrets, *(value for name, value in environ.items() if _SECRET_NAME.search(name))}
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{MASK}", text)
    own = re.escape(str(Path.home()))
    return re.sub(rf"(?<![\w.~-])(?:{own}|{_HOMES})(?![\w.-])", "~", text)


def member_text(name: str, pipeline: Pipeline) -> str:
    """Returns a part of the bundle, masked; where it cannot be made, the reason."""
    file, token = pipeline.dataset.source.token_file, None
    with contextlib.suppress(StokerError):  # it holds none, which the check of the source tells
        token = hub_token(None if file is None else str(file))
    try:
        text = MEMBERS[name](pipeline)
    except Exception as error:  # noqa: BLE001 - the rest of the bundle is worth sending all the same
        text = f"not to be had: {error!r}\n"
    return mask(text, token or "")


def write_bundle(target: Path, folder: str, members: Mapping[str, str]) -> int:
    """Writes the parts as a tar; returns its size in bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in members.items():
            data, about = text.encode(errors="replace"), tarfile.TarInfo(f"{folder}/{name}")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    write_atomic(target, packed.getvalue(), mode=0o600)
    return len(packed.getvalue())


def _versions(_pipeline: Pipeline) -> str:
    packages = sorted(f"{one.name} {one.version}" for one in distributions())
    return "\n".join([platform.platform(), f"Python {sys.version}", *packages, ""])


def _status(pipeline: Pipeline) -> str:
    from stoker.cli.pipeline.status import as_body

    facts = gather(pipeline, daemons := read_status(pipeline.layout))
    return json.dumps(as_body(verdict(facts), facts, daemons), indent=1)


def _events(pipeline: Pipeline) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in EventTail(pipeline.layout).new()[-EVENTS:])


def _logs(pipeline: Pipeline) -> str:
    """Returns the daemons' last lines: of the journal, where systemd runs them, and of `stoker run`."""
    text = ""
    if journal := shutil.which("journalctl"):
        units = [f"--unit={unit_name(daemon, pipeline.name)}" for daemon in DAEMONS]
        command = launch_command([journal, *units, f"--lines={LINES}", "--no-pager", "--output=short-iso"])
        done = subprocess.run(command, capture_output=True, check=False, timeout=JOURNAL_S)
        text = done.stdout.decode(errors="replace")
    for daemon in DAEMONS:
        if root := read_contents(pipeline.layout.lock(daemon)).extra.get("runtime"):
            text += _tail(Path(root) / "log" / f"{daemon}.log")
    return text


def _tail(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        return f"{file}:\n{stream.read().decode(errors='replace')}\n"


MEMBERS: dict[str, Callable[[Pipeline], str]] = {
    "config.yaml": effective_yaml,
    "versions.txt": _versions,
    "status.json": _status,
    "events.jsonl": _events,
    "logs.txt": _logs,
    "run.json": lambda pipeline: _tail(pipeline.layout.run(pipeline.train.run).record),
    "samples.csv": lambda pipeline: "".join(_tail(pipeline.layout.samples(daemon)) for daemon in DAEMONS),
}
