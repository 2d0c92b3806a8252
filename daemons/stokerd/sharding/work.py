"""What the loop remembers of its jobs besides their workers, and what it counted since its start."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stoker.corpus.schedule.outcome import Attempt
from stoker.corpus.staging.disk_contents import Growth
from stoker.observe.machine import MemoryFacts

Message = Mapping[str, Any]


@dataclass(kw_only=True)
class Work:
    """A job; `Begin` fills in its dataset and the memory state before it."""

    dataset: str = ""
    memory: MemoryFacts | None = None


@dataclass(kw_only=True)
class SourceWork(Work):
    """Work on a source's file or set, with its progress: that place may be blamed for a death.

    `row_group` was being read last, `reached` is the row group and row that its last commit ends before.
    """

    receipt: Receipt | None = None
    row_group: int | None = None
    reached: tuple[int, int] = (0, 0)
    is_asked: bool = False  # a proof of a published set, by request


@dataclass(kw_only=True)
class BuildWork(SourceWork):
    """A build; `tokens` are durable, `asks` is (bytes written, bytes needed) of its request for space."""

    attempt: Attempt | None = None
    is_encoding: bool = False
    is_resumed: bool = False
    tokens: int | None = None
    asks: tuple[int, int] | None = None
    refused: Growth | None = None


@dataclass
class Progress:
    """Counts since the start; `at` is the time of the last progress (time.time).

    Tokens built, ends of jobs by kind and outcome, bytes moved by kind, rechecks of quarantined files by
    verdict, entries dropped from quarantine by kind.
    """

    at: float = field(default_factory=time.time)
    built_tokens: int = 0
    ends: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    moved_bytes: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def committed(self, work: BuildWork, tokens: int) -> None:
        """Counts new tokens of a build's commit; a resumed build's first commit includes earlier tokens."""
        before, work.tokens = work.tokens, tokens
        if before is not None or not work.is_resumed:
            self.built_tokens += max(0, tokens - (before or 0))
        self.at = time.time()
