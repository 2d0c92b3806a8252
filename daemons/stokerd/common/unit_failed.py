"""Tells the journal why a unit failed, in one entry at priority 2: `OnFailure=` starts it.

    python -m stokerd.common.unit_failed UNIT DIRECTORY

DIRECTORY holds the pipelines' files. systemd says in MONITOR_... how the unit ended (systemd.exec(5)).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.kit.event_types import event_type, filled
from stoker.kit.events import PRIORITIES, Log
from stoker.store.record import parse_json

UNIT = re.compile(r"stoker-(?P<daemon>[a-z-]+)@(?P<pipeline>[\w.-]+)\.service")
OF_MACHINE = "/etc/stoker"  # where a machine's pipelines lie; a user's lie in their own configuration
LAST_ENTRIES, LAST_LINES = 500, 8
READ_S = 60.0
AUDITS = {"audit": "", "scrub": " --deep"}
Entry = Mapping[str, Any]


def last_error(newest_first: Iterable[Entry]) -> tuple[Entry, str]:
    """Returns the last error event of a unit's journal and its text.

    Without one: an empty entry and the last lines that it printed.
    """
    printed: list[str] = []
    for entry in newest_first:
        message = str(entry.get("MESSAGE") or "")
        if "STOKER_EVENT" in entry and int(entry["PRIORITY"]) <= PRIORITIES["error"]:
            return entry, message
        if entry.get("_TRANSPORT") == "stdout" and len(printed) < LAST_LINES:
            printed.append(message.strip())
    return {}, " ".join(reversed(printed))


def remedy(unit: str, file: str, exit_code: str, event: Entry) -> str:
    """Returns what a person does, so that the unit can be started again."""
    daemon, pipeline = _parts(unit)
    if daemon in AUDITS and exit_code == "1":
        return f"`stoker audit {file}{AUDITS[daemon]}` names each finding; do what the runbook says of it"
    whose = "" if file.startswith(f"{OF_MACHINE}/") else " --user"
    start = f"then `systemctl{whose} start {unit}`"
    if exit_code == str(os.EX_CONFIG):
        return f"do what the error says; `stoker config check {file}` checks the file; {start}"
    known = event_type(str(event.get("STOKER_EVENT")))
    if known is not None and known.do:
        return filled(known.do, file, pipeline, lambda name: str(event.get(f"STOKER_{name.upper()}", "")))
    return f"`journalctl{whose} -xu {unit}` says what came before; {start}"


def main(argv: Sequence[str]) -> int:
    """Writes the entry; returns 0, or 64 for a unit that is not Stoker's."""
    if len(argv) != 2 or UNIT.fullmatch(argv[0]) is None:
        print("usage: python -m stokerd.common.unit_failed UNIT DIRECTORY", file=sys.stderr)
        return os.EX_USAGE
    unit, directory = argv
    daemon, pipeline = _parts(unit)
    result = os.environ.get("MONITOR_SERVICE_RESULT", "unknown")
    exit_code = os.environ.get("MONITOR_EXIT_STATUS", "unknown")
    event, said = last_error(_journal(os.environ.get("MONITOR_INVOCATION_ID", "")))
    file = f"{directory}/{pipeline}.yaml"
    log = Log(daemon.replace("-", "_"), pipeline, file)
    log.critical(
        "unit_failed",
        unit=unit,
        result=result,
        exit_code=exit_code,
        last_event=str(event.get("STOKER_EVENT") or "none"),
        last_error=said or "not known",
        remedy=remedy(unit, file, exit_code, event),
    )
    return 0


def _parts(unit: str) -> tuple[str, str]:
    found = UNIT.fullmatch(unit)
    assert found is not None
    return found["daemon"], found["pipeline"]


def _journal(invocation: str) -> list[Entry]:
    """Returns the last entries of one invocation of a unit, newest first; none where they cannot be read."""
    if not invocation:
        return []
    ask = ["journalctl", "--output=json", "--reverse", "--quiet", f"--lines={LAST_ENTRIES}"]
    ask += [f"_SYSTEMD_INVOCATION_ID={invocation}"]
    try:
        found = subprocess.run(ask, capture_output=True, timeout=READ_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        print(f"the journal cannot be read: {problem}", file=sys.stderr)
        return []
    return [parse_json(line) for line in found.splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
