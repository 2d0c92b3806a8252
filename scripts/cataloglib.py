"""The journal's catalog, which `journalctl -x` shows beside each event (systemd's catalog format)."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from stoker.kit.event_types import EventType, filled, message_id, register

CATALOG = Path(__file__).parents[1] / "deploy" / "systemd" / "stoker.catalog"
HEAD = "# Made by scripts/catalog from lib/stoker/kit/event_types: do not edit.\n"
RUNBOOK = "file:///opt/stoker/docs/runbook.md"
COLUMNS = 90


def entry(of: EventType) -> str:
    """Returns the entry of an event type."""
    parts = {"What it means": of.meaning, "Check": of.check, "Do": of.do}
    body = [textwrap.fill(f"{part}: {text}", COLUMNS, break_long_words=False, break_on_hyphens=False)
            for part, text in parts.items() if text]  # fmt: skip
    link = f"{RUNBOOK}#{of.alert.lower()}" if of.alert else RUNBOOK
    head = f"Subject: {of.headline[0].upper()}{of.headline[1:]} (NAME: {of.word})"
    text = "\n".join((head, "Defined-By: Stoker", f"Documentation: {link}", "", *body, ""))
    # journalctl fills in @FIELD@ from the entry.
    pipeline = "@STOKER_PIPELINE@"
    text = filled(text, "@STOKER_PIPELINE_FILE@", pipeline, lambda field: f"@STOKER_{field.upper()}@")
    return f"\n-- {message_id(of.word)}\n{text}"


def catalog() -> str:
    """Returns the whole file, in the order of the words; none of those where there is nothing to add."""
    return HEAD + "".join(entry(of) for _, of in sorted(register().items()) if of.meaning)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        CATALOG.write_text(catalog())
    elif CATALOG.read_text() != catalog():
        sys.exit(f"{CATALOG.name} differs from the tables of event types: run scripts/catalog")
