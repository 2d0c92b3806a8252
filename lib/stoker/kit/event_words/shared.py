"""Words that more than one daemon records."""

from __future__ import annotations

from stoker.kit.event_words.word import error, info

DISK_FULL = error(
    "a write met a full disk; its work waits",
    "Nothing is lost; other work goes on.",
    "Read place and path above; run `df -h` and `df -i` there. Is there a quota?",
    "Make room; it looks every few seconds.",
    alert="StokerPausedForDisk",
)
QUARANTINE_DROPPED = info("quarantined things were removed within the budget or as asked")
