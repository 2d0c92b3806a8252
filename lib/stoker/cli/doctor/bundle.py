"""The bundle of `stoker doctor`: what a bug report needs, without secrets and home directories."""

from __future__ import annotations

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
from stoker.kit.events import EventTail
from stoker.kit.exec import launch_command
from stoker.kit.lock import read_contents
from stoker.observe.verdict import verdict
from stoker.store.files import write_atomic
from stoker.store.layout import DAEMONS
from stoker.supervise.health.output import last_lines
from stoker.supervise.outlook import gather
from stoker.systemd.units import unit_name

EVENTS, LINES, JOURNAL_S = 300, 500, 5.0  # the newest; and the time that the journal has
SHORTEST = 6  # a shorter value of an environment variable may be any word
NAMED = r"token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
_HOMES = r"/(?:home|Users)/[^/\s\"'\\:,]+|/root"
_SECRETS = (  # what stays, then what is masked
    r"(://)[^\s/\"'\\]+(?=@)",
    r"(://[^\s\"'\\?]*\?)[^\s\"'\\]+",
    r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}",
    r"(\b)hf_[a-z0-9]{8,}",
    # name=value, "name": "value", --name value; a number, true or null under such a name is no secret
    rf"((?:{NAMED})[\\\"']*\s*[:=]\s*[\\\"']*)(?!(?:null|true|false|\d+)\b)[^\s\"'\\,;&}}\]]+",
    rf"(--[\w-]*(?:{NAMED})[\"']?,?\s+[\"']?)[^\s\"',]+",
)


def mask(text: str, *secrets: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the text without these secrets, those of the environment, and what looks like one."""
    named = (value for name, value in environ.items() if re.search(NAMED, name, re.IGNORECASE))
    for secret in sorted({*secrets, *named}, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
    for pattern in _SECRETS:
        text = re.sub(pattern, rf"\1{MASK}", text, flags=re.IGNORECASE)
    own = re.escape(str(Path.home()))
    return re.sub(rf"(?<![\w.~-])(?:{own}|{_HOMES})(?![\w.-])", "~", text)


def member_text(name: str, pipeline: Pipeline) -> str:
    """Returns a part of the bundle, masked; where it cannot be made, the reason."""
    file = pipeline.dataset.source.token_file
    token = file.read_text(errors="replace") if file is not None and os.access(file, os.R_OK) else ""
    try:
        text = MEMBERS[name](pipeline)
    except Exception as error:  # noqa: BLE001 - the rest of the bundle is worth sending all the same
        text = f"not to be had: {error!r}\n"
    return mask(text, token.strip())


def write_bundle(target: Path, folder: str, members: Mapping[str, str]) -> None:
    """Writes the parts as a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in members.items():
            data, about = text.encode(errors="replace"), tarfile.TarInfo(f"{folder}/{name}")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    write_atomic(target, packed.getvalue(), mode=0o600)


def _versions(_pipeline: Pipeline) -> str:
    packages = sorted(f"{one.name} {one.version}" for one in distributions())
    return "\n".join([platform.platform(), f"Python {sys.version}", *packages, ""])


def _status(pipeline: Pipeline) -> str:
    from stoker.cli.pipeline.status import as_body

    facts = gather(pipeline)
    return json.dumps(as_body(verdict(facts), facts, facts.daemons), indent=1)


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
            text += "\n".join([f"{daemon}:", *last_lines(Path(root) / "log" / f"{daemon}.log", LINES), ""])
    return text


MEMBERS: dict[str, Callable[[Pipeline], str]] = {
    "config.yaml": effective_yaml,
    "versions.txt": _versions,
    "status.json": _status,
    "events.jsonl": _events,
    "logs.txt": _logs,
    "run.json": lambda pipeline: pipeline.layout.run(pipeline.train.run).record.read_text(),
}
