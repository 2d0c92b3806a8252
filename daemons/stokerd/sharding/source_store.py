"""The source records in hand: read once, then changed only through here, durably before it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.record_dir import uncollected
from stoker.corpus.records.sources import Source, read_sources, write_source
from stoker.kit.events import Events
from stoker.store.files import unlink_durably
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, set_aside


class SourceBook:
    """Every source of the dataset by path."""

    def __init__(self, layout: StateLayout, dataset: str, events: Events) -> None:
        self._layout, self._events = layout, events
        self.dataset = dataset
        with uncollected():
            self.sources = Catalog(read_sources(layout, dataset, self._set_aside))
        # What is on its way is held against its receipts first.
        self._touched = {source.path for source in self.sources.in_state("staged", "building")}

    @property
    def changes(self) -> int:
        """How often anything was written."""
        return self.sources.changes

    def take_touched(self) -> set[str]:
        """The paths whose record was written since this was asked last."""
        touched, self._touched = self._touched, set()
        return touched

    def write(self, source: Source) -> None:
        """Make the record durable, then believe it."""
        write_source(self._layout, source)
        self.sources.put(source)
        self._touched.add(source.path)

    def renew(
        self,
        source: Source,
        reason: str,
        *,
        size: int | None = None,
        sha256: str | None = None,
        level: Literal["info", "warning", "error"] = "info",
    ) -> None:
        """Start a source from the beginning, with the content it had or a new one."""
        renewed = source.renewed(
            size=source.size if size is None else size, sha256=sha256 or source.sha256, reason=reason
        )
        self.write(renewed)
        self._events.record("source_renewed", level=level, path=source.path, was=source.state, reason=reason)

    def forget(self, source: Source) -> None:
        """Remove a record for good."""
        unlink_durably(self._layout.source(source.dataset, source.path))
        self.sources.drop(source.path)
        self._touched.add(source.path)

    def _set_aside(self, file: Path, error: RecordDamaged) -> None:
        # What it said is found again: the receipt says what the file is, the set on hot what was built.
        place = set_aside(file, self._layout.quarantine, "damaged", str(error))
        self._events.record("record_damaged", level="error", path=str(file), moved_to=str(place))
