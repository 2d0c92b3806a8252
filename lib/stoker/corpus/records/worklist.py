"""The files of a source by the work that each needs, updated receipt by receipt.

A pass over 50,000 files takes half a second: it is made when the listing changes, not in every cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Generic, Protocol, TypeVar

from stoker.corpus.records.receipts import Receipt


class Listed(Protocol):
    """A file that a source holds; the size is None where only its server knows it."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int | None: ...


L = TypeVar("L", bound=Listed)


class Rules(Protocol[L]):
    """How one kind of source judges its files; `states` are all the states that `state_of` returns."""

    @property
    def states(self) -> tuple[str, ...]: ...

    def state_of(self, file: L, receipt: Receipt | None) -> tuple[str, bool]:
        """Returns the file's state, and whether there is work to do for the file."""

    def wanted_again(self, receipt: Receipt) -> L | None:
        """Returns the file if it is no longer listed and has to be fetched again."""


_TO_COME = ("waiting", "disputed")  # a file that is pending in another state is not fetched now


class Worklist(Generic[L]):
    """The files of a source, those with work to do, and the counts and sums that the status shows."""

    def __init__(self, rules: Rules[L], receipts: Mapping[str, Receipt]) -> None:
        self._rules, self._receipts = rules, receipts
        self.take({}, {})

    def take(self, listed: Mapping[str, L], selected: Mapping[str, L]) -> None:
        """Replaces the listing and the selection."""
        self.listed = listed  # the files within dataset.limit.files
        self.selected = selected  # the listed files to have now
        self.pending: dict[str, L] = {}  # the files with work to do
        self.counts = Counter(dict.fromkeys(self._rules.states, 0))  # listed files by state
        self.bytes = sum(each.size or 0 for each in selected.values())
        self.bytes_left = 0  # of the pending files that are still to arrive
        self._states: dict[str, str] = {}
        self._left: dict[str, int] = {}
        others = (receipt for path, receipt in self._receipts.items() if path not in listed)
        again = ((receipt.path, self._rules.wanted_again(receipt)) for receipt in others)
        # Files that are no longer listed and have to be fetched again.
        self.reasked = {path: file for path, file in again if file is not None}
        for path, file in {**self.reasked, **listed}.items():
            self._put(path, file)

    def note(self, path: str) -> None:
        """Judges one file again after its receipt was written."""
        file = self.listed.get(path)
        if file is None:
            file = self._rules.wanted_again(self._receipts[path])
            if file is None:
                self.reasked.pop(path, None)
            else:
                self.reasked[path] = file
        self._put(path, file, first=True)

    def _put(self, path: str, file: L | None, *, first: bool = False) -> None:
        self.bytes_left -= self._left.pop(path, 0)
        state, is_pending = self._rules.state_of(file, self._receipts.get(path)) if file else ("", False)
        if path in self.listed:
            if path in self._states:
                self.counts[self._states[path]] -= 1
            self.counts[state] += 1
            self._states[path] = state
            is_pending = is_pending and path in self.selected
        if file is None or not is_pending:
            self.pending.pop(path, None)
            return
        if state in _TO_COME:
            self._left[path] = file.size or 0
            self.bytes_left += self._left[path]
        if first and path not in self.pending:  # on request: this file goes before those that wait anyway
            self.pending = {path: file, **self.pending}
        else:
            self.pending[path] = file

    @property
    def is_any_to_come(self) -> bool:
        """Whether a file's bytes are still to arrive."""
        return bool(self._left)

    def next(self, slots: int, may: Callable[[str], bool]) -> list[L]:
        """Returns at most `slots` of the first pending files that `may` allows."""
        return list(islice((file for path, file in self.pending.items() if may(path)), max(0, slots)))
