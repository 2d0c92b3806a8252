"""How far the fetching has come, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.corpus.receipts import Receipt
from stoker.corpus.transfers import Transfers
from stoker.corpus.wants import Wanted, is_settled

STATES = ("waiting", "fetching", "verified", "releasing", "released", "disputed", "given_up")


def counts_of(
    wanted: Mapping[str, Wanted], still: Mapping[str, Wanted], receipts: Mapping[str, Receipt], in_hand: int
) -> dict[str, int]:
    """How many files are in which state; every state is present, so that a gauge falls back to 0.

    `still` are those of the wanted files that something is to be done about.
    """
    counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
    for path, each in wanted.items():
        receipt = receipts.get(path)
        if receipt is None:
            counts["waiting"] += 1
        elif path not in still or is_settled(receipt, each) or receipt.state == "disputed":
            counts[receipt.state] += 1
        else:
            counts["waiting"] += 1
    fetching = min(in_hand, counts["waiting"])
    counts["waiting"] -= fetching
    counts["fetching"] = fetching
    return dict(counts)


def how_far(
    meant: Mapping[str, Wanted],
    still: Mapping[str, Wanted],
    receipts: Mapping[str, Receipt],
    transfers: Transfers,
) -> dict[str, Any]:
    """Bytes that are here of those meant, as far as sizes are known; the rate, and the time left.

    Bytes of files of unknown size count in neither.
    """
    whole = sum(each.size or 0 for each in meant.values())
    left = sum(each.size or 0 for path, each in still.items() if not is_settled(receipts.get(path), each))
    left = max(0, left - transfers.under_way_bytes())
    left_s = transfers.left_s(left)
    return {
        "bytes_of": whole,
        "bytes_done": max(0, whole - left),
        "rate_bytes_per_second": round(transfers.rate),
        "eta_s": None if left_s is None or not left else round(left_s),
    }
