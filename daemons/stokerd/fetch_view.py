"""How far the fetching has come, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.corpus.receipts import Receipt
from stoker.corpus.transfers import Transfers
from stoker.corpus.wants import Wanted, is_settled

STATES = ("waiting", "fetching", "verified", "releasing", "released", "disputed", "given_up")


class Figures:
    """Counts and bytes, taken anew only when something changed: 50,000 files take a tenth of a second."""

    def __init__(self) -> None:
        self._of: object = None
        self._counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
        self._whole = self._left = self.given_up = 0

    def take(
        self,
        state: object,
        wanted: Mapping[str, Wanted],
        meant: Mapping[str, Wanted],
        still: Mapping[str, Wanted],
        receipts: Mapping[str, Receipt],
    ) -> None:
        """Look, where `state` is another than the last time.

        `meant` are those of the wanted files that are to be here now, `still` those that something is to be
        done about. Bytes of files of unknown size count nowhere.
        """
        if state == self._of:
            return
        self._of, self._counts = state, _counts(wanted, still, receipts)
        self._whole = sum(each.size or 0 for each in meant.values())
        self._left = sum(
            each.size or 0 for path, each in still.items() if not is_settled(receipts.get(path), each)
        )
        self.given_up = self._counts["given_up"]

    def counts(self, in_hand: int) -> dict[str, int]:
        """How many files are in which state; every state is present, so that a gauge falls back to 0."""
        fetching = min(in_hand, self._counts["waiting"])
        waiting = self._counts["waiting"] - fetching
        return {**self._counts, "waiting": waiting, "fetching": fetching}

    def how_far(self, transfers: Transfers) -> dict[str, Any]:
        """Bytes that are here of those meant; the rate, and the time left."""
        left = max(0, self._left - transfers.under_way_bytes())
        left_s = transfers.left_s(left)
        return {
            "bytes_of": self._whole,
            "bytes_done": max(0, self._whole - left),
            "rate_bytes_per_second": round(transfers.rate),
            "eta_s": None if left_s is None or not left else round(left_s),
        }


def _counts(
    wanted: Mapping[str, Wanted], still: Mapping[str, Wanted], receipts: Mapping[str, Receipt]
) -> Counter[str]:
    counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
    for path, each in wanted.items():
        receipt = receipts.get(path)
        if receipt is None:
            counts["waiting"] += 1
        elif path not in still or is_settled(receipt, each) or receipt.state == "disputed":
            counts[receipt.state] += 1
        else:
            counts["waiting"] += 1
    return counts
