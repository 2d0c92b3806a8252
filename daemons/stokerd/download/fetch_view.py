"""How far the fetching has come, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.corpus.fetch.selection import Wanted, is_settled
from stoker.corpus.fetch.transfers import Transfers
from stoker.corpus.records.receipts import Receipt

STATES = ("waiting", "fetching", "verified", "unproven", "releasing", "released", "disputed", "given_up")


class Figures:
    """Counts and bytes, kept up to date with each receipt: to look at 50,000 files takes half a second."""

    def __init__(self) -> None:
        self._of: object = None
        self._wanted: Mapping[str, Wanted] = {}
        self._still: Mapping[str, Wanted] = {}
        self._again: Mapping[str, Wanted] = {}
        self._receipts: Mapping[str, Receipt] = {}
        # A wanted file's state, and whether its bytes are still to come.
        self._noted: dict[str, tuple[str, bool]] = {}
        self._counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
        self._whole = self._left = 0

    @property
    def given_up(self) -> int:
        """How many files could not be brought."""
        return self._counts["given_up"]

    def take(
        self,
        state: object,
        wanted: Mapping[str, Wanted],
        still: Mapping[str, Wanted],
        receipts: Mapping[str, Receipt],
        *,
        meant: Mapping[str, Wanted],
        again: Mapping[str, Wanted],
    ) -> None:
        """Look at all, where `state` is another than the last time.

        `meant` are those of the wanted files that are to be here now, `still` those that something is to be
        done about, `again` those of them that are not wanted but asked for. Bytes of files of unknown size
        count nowhere.
        """
        if state == self._of:
            return
        self._of = state
        self._wanted, self._still, self._again, self._receipts = wanted, still, again, receipts
        self._counts, self._left = Counter(dict.fromkeys(STATES, 0)), 0
        self._noted = {}
        for path, each in wanted.items():
            self._note(path, each)
        self._whole = sum(each.size or 0 for _, each in meant.items())

    def moved(self, path: str) -> None:
        """A file's receipt was written."""
        if (each := self._wanted.get(path)) is None:
            return
        state, left = self._noted[path]
        self._counts[state] -= 1
        self._left -= (each.size or 0) if left else 0
        self._note(path, each)

    def _note(self, path: str, each: Wanted) -> None:
        receipt, open_ = self._receipts.get(path), path in self._still
        settled = is_settled(receipt, each)
        state = "waiting"
        if receipt is not None and (not open_ or settled or receipt.state == "disputed"):
            state = receipt.state
        left = open_ and not settled
        self._noted[path] = state, left
        self._counts[state] += 1
        self._left += (each.size or 0) if left else 0

    def counts(self, in_hand: int) -> dict[str, int]:
        """How many files are in which state; every state is present, so that a gauge falls back to 0."""
        fetching = min(in_hand, self._counts["waiting"])
        waiting = self._counts["waiting"] - fetching
        return {**self._counts, "waiting": waiting, "fetching": fetching}

    def how_far(self, transfers: Transfers) -> dict[str, Any]:
        """Bytes that are here of those meant; the rate, and the time left."""
        again = (each for path, each in self._again.items() if path in self._still)
        more = sum(each.size or 0 for each in again if not is_settled(self._receipts.get(each.path), each))
        left = max(0, self._left + more - transfers.under_way_bytes())
        left_s = transfers.left_s(left)
        return {
            "bytes_of": self._whole,
            "bytes_done": max(0, self._whole - left),
            "rate_bytes_per_second": round(transfers.rate),
            "eta_s": None if left_s is None or not left else round(left_s),
        }
