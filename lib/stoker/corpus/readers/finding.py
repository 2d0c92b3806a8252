"""A flaw of a file, and the error that carries it; free of Arrow, because the daemon imports this too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.store.errors import DataError

SET_INVALID = "set_invalid"  # the reason of a finding against the set on hot, not against the file
_DETAIL_CHARS = 1000  # a finding quotes names, and a name may be megabytes long


@dataclass(frozen=True)
class Finding:
    """Why a file is quarantined, and the place of the flaw in the file."""

    reason: str  # a stable word
    detail: str = ""  # the reader's own words
    row_group: int | None = None
    column: str | None = None
    figures: Mapping[str, int] = field(default_factory=dict)  # further fields of the event, in bytes

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Finding:
        """Parses the result of a worker with the status `bad`."""
        detail = str(result.get("detail") or "")
        return cls(str(result.get("reason")), detail, result.get("row_group"), result.get("column"))

    def __str__(self) -> str:
        place = "" if self.row_group is None else f" in row group {self.row_group}"
        place += f", column {self.column}" if self.column else ""
        return f"{self.reason}{place}: {self.detail[:_DETAIL_CHARS] or 'no more is known'}"

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a worker's result, a reason.json and an event."""
        place = {"row_group": self.row_group, "column": self.column}
        return {"reason": self.reason, **place, "detail": self.detail[:_DETAIL_CHARS], **self.figures}


class BadFile(DataError):
    """Raised for a file whose content is wrong."""

    def __init__(
        self, reason: str, detail: str, row_group: int | None = None, column: str | None = None
    ) -> None:
        self.finding = Finding(reason, detail, row_group, column)
        super().__init__(str(self.finding))
