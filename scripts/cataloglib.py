"""The journal's catalog, which `journalctl -x` shows beside each event (systemd's catalog format)."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from stoker.kit.event_words import REGISTER, Word, message_id
from stoker.kit.event_words.word import ALL_IS_WELL, filled

CATALOG = Path(__file__).parents[1] / "deploy" / "systemd" / "stoker.catalog"
HEAD = "# Made by scripts/catalog from lib/stoker/kit/event_words: do not edit.\n"
RUNBOOK = "file:///opt/stoker/docs/runbook.md"
COLUMNS = 90


def entry(name: str, word: Word) -> str:
    """Returns the entry of a word."""
    parts = {"What it means": word.means, "Check": word.check, "Do": word.do}
    body = [textwrap.fill(f"{part}: {text}", COLUMNS, break_long_words=False, break_on_hyphens=False)
            for part, text in parts.items() if text]  # fmt: skip
    link = f"{RUNBOOK}#{word.alert.lower()}" if word.alert else RUNBOOK
    head = f"Subject: {word.subject[0].upper()}{word.subject[1:]} (NAME: {name})"
    text = "\n".join((head, "Defined-By: Stoker", f"Documentation: {link}", "", *body, ""))
    # journalctl fills in @FIELD@ from the entry.
    pipeline = "@STOKER_PIPELINE@"
    text = filled(text, "@STOKER_PIPELINE_FILE@", pipeline, lambda field: f"@STOKER_{field.upper()}@")
    return f"\n-- {message_id(name)}\n{text}"


def catalog() -> str:
    """Returns the whole file, in the order of the words; none of those where there is nothing to add."""
    return HEAD + "".join(
        entry(name, word) for name, word in sorted(REGISTER.items()) if word.means != ALL_IS_WELL
    )


if __name__ == "__main__":
    if "--check" not in sys.argv:
        CATALOG.write_text(catalog())
    elif CATALOG.read_text() != catalog():
        sys.exit(f"{CATALOG.name} differs from the register of event words: run scripts/catalog")
