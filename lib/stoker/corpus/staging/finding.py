"""What is wrong with a file, and the error that carries it; without Arrow, for the daemon uses it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.store.errors import DataError

SET_INVALID = "set_invalid"  # the reason of a finding against the set on hot, not against the file
_DETAIL_CHARS = 1000  # a finding quotes names, and a name may be megabytes


@dataclass(frozen=True)
class Finding:
    """Why a file goes into quarantine, and where in it; `figures` are more fields of the event, in bytes.

    `reason` is a stable word, `detail` the reader's own words.
    """

    reason: str
    detail: str = ""
    row_group: int | None = None
    column: str | None = None
    figures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Finding:
        """The finding that a worker's result of status `bad` tells."""
        detail = str(result.get("detail") or "")
        return cls(str(result.get("reason")), detail, result.get("row_group"), result.get("column"))

    def __str__(self) -> str:
        place = "" if self.row_group is None else f" in row group {self.row_group}"
        place += f", column {self.column}" if self.column else ""
        return f"{self.reason}{place}: {self.detail[:_DETAIL_CHARS] or 'no more is known'}"

    def fields(self) -> dict[str, Any]:
        """As a worker's result, a reason.json and an event have it."""
        place = {"row_group": self.row_group, "column": self.column}
        return {"reason": self.reason, **place, "detail": self.detail[:_DETAIL_CHARS], **self.figures}


class BadParquet(DataError):
    """The file's content is wrong."""

    def __init__(
        self, reason: str, detail: str, row_group: int | None = None, column: str | None = None
    ) -> None:
        self.finding = Finding(reason, detail, row_group, column)
        super().__init__(str(self.finding))
