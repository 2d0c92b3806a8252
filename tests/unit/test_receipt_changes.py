"""What becomes of a receipt, what is told of it and what is answered, in tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.corpus.fetch.decide import (
    Change,
    FetchMessage,
    accepted,
    disputed,
    fetched,
    fetched_again,
    given_up,
    hashed,
    released,
    removed,
    still_needed,
)
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Receipt, ReceiptState, Unneeded
from stoker.corpus.records.sources import Source, SourceState
from stoker.corpus.source.folder import FileSeen

SUM, OTHER = "a" * 64, "b" * 64
WANTED = RemoteFile("x", 10, f"sha256:{SUM}", revision="c" * 40)
HERE = Receipt("d", "x", "/l/x", 10, SUM, "c" * 40, f"sha256:{SUM}", "verified")
FILE = FileSeen("x", 10, 1, 7)
FOLDER = replace(HERE, etag=FILE.etag, revision="")


def told(change: Change) -> tuple[str, str]:
    """The state to write, and the event."""
    return change.receipt.state if change.receipt else "", change.event


@pytest.mark.parametrize(
    ("before", "sha256", "state", "event"),
    [
        (None, SUM, "verified", "file_verified"),
        (FOLDER, SUM, "verified", "file_reverified"),
        (FOLDER, OTHER, "disputed", "source_rotten"),
        (replace(FOLDER, etag="9-9-9"), SUM, "verified", "file_reverified"),
        (replace(FOLDER, etag="9-9-9"), OTHER, "verified", "source_changed"),
    ],
)
def test_a_hashed_file(before: Receipt | None, sha256: str, state: str, event: str) -> None:
    change = hashed(before, "d", "/f/x", FILE, sha256, cached=False)
    assert told(change) == (state, event)
    assert change.receipt is not None and change.receipt.file == "/f/x"
    assert (change.receipt.found == sha256) == (event == "source_rotten")


@pytest.mark.parametrize(
    ("before", "unproven", "state", "event"),
    [
        (None, False, "verified", "file_verified"),
        (None, True, "unproven", "file_unproven"),
        (HERE, False, "verified", "file_reverified"),
        (replace(HERE, sha256=OTHER), False, "verified", "file_verified"),
    ],
)
def test_a_fetched_file(before: Receipt | None, unproven: bool, state: str, event: str) -> None:
    done = FetchMessage("done", "x", how="fetched", size=10, sha256=SUM, unproven=unproven, fetched=10)
    change = fetched(before, "d", "/l/x", WANTED, done)
    assert told(change) == (state, event)
    assert change.receipt == replace(HERE, state=state)


def test_a_file_that_cannot_be_had_is_given_up_once_for_each_content() -> None:
    change = given_up(None, "d", "/l/x", WANTED)
    assert change.receipt == replace(HERE, state="given_up") and not change.event
    assert given_up(change.receipt, "d", "/l/x", WANTED) == Change()
    other = replace(WANTED, identity=f"sha256:{OTHER}")
    assert told(given_up(change.receipt, "d", "/l/x", other)) == ("given_up", "")


def test_what_was_unlinked_is_released_unless_it_was_asked_for_meanwhile() -> None:
    assert told(removed(replace(HERE, state="releasing"))) == ("released", "file_released")
    assert removed(replace(HERE, state="disputed")) == Change()
    assert removed(None) == Change()


@pytest.mark.parametrize(
    ("state", "sha256", "written", "answer"),
    [
        ("verified", SUM, "disputed", {"receipt": "disputed"}),
        ("unproven", SUM, "disputed", {"receipt": "disputed"}),
        ("disputed", SUM, "", {"receipt": "disputed"}),
        ("verified", OTHER, "", {"receipt": "verified", "sha256": SUM}),
        ("released", SUM, "", {"receipt": "released", "sha256": SUM}),
    ],
)
def test_a_dispute(state: ReceiptState, sha256: str, written: str, answer: dict[str, str]) -> None:
    change = disputed(replace(HERE, state=state), "x", sha256, "verify")
    assert told(change) == (written, "receipt_disputed" if written else "")
    assert change.answer == answer


def test_only_a_rotten_file_is_accepted_with_the_content_that_it_has_now() -> None:
    rotten = replace(FOLDER, state="disputed", found=OTHER)
    change = accepted(rotten, "x", OTHER, "me")
    assert change.receipt == replace(FOLDER, sha256=OTHER) and told(change)[1] == "source_changed"
    for receipt, sha256 in ((rotten, SUM), (FOLDER, ""), (None, OTHER)):
        assert accepted(receipt, "x", sha256, "me").refusal


@pytest.mark.parametrize(
    ("state", "sha256", "kept", "written", "answer"),
    [
        ("verified", SUM, "", "releasing", {"receipt": "releasing"}),
        ("verified", SUM, "it is staged", "", {"refused": "x: it is staged"}),
        ("verified", OTHER, "", "", {"receipt": "verified", "sha256": SUM}),
        ("releasing", SUM, "", "", {"receipt": "releasing", "sha256": SUM}),
        ("disputed", SUM, "", "", {"receipt": "disputed", "sha256": SUM}),
    ],
)
def test_a_release(state: ReceiptState, sha256: str, kept: str, written: str, answer: dict[str, str]) -> None:
    change = released(replace(HERE, state=state), "x", sha256, lambda: kept)
    assert told(change) == (written, "") and change.answer == answer


def sources(own: SourceState | None, owner: SourceState | None, sha256: str = SUM) -> dict[str, Source]:
    states = {"x": own, "y": owner}
    return {path: Source("d", path, 10, sha256, state=state) for path, state in states.items() if state}


@pytest.mark.parametrize(
    ("own", "owner", "options", "why"),
    [
        ("released", None, {}, ""),
        ("proven", None, {}, ""),
        ("proven", None, {"has_warm": True}, "x is proven"),
        ("synced", None, {"has_warm": True}, ""),
        ("staged", None, {}, "x is staged"),
        ("duplicate", None, {}, "x is duplicate"),
        ("duplicate", "released", {}, ""),
        ("duplicate", "building", {}, "y is building"),
        (None, "released", {}, "no source record of x"),
        ("released", None, {"release": "never"}, "shard.release is never"),
    ],
)
def test_a_file_stays_while_its_contents_set_is_not_safe(
    own: SourceState | None, owner: SourceState | None, options: dict[str, Any], why: str
) -> None:
    unneeded = Unneeded(SUM, "y" if owner else "x")
    options = {"release": "after_proof", "has_warm": False, **options}
    reason = still_needed("x", unneeded, sources(own, owner).get, **options)
    assert why in reason and bool(reason) == bool(why)
    other = still_needed("x", Unneeded(OTHER, "x"), sources("released", None).get, **options)
    assert other, "another content than the one that is not needed"


@pytest.mark.parametrize(
    ("state", "sha256", "wanted", "written", "answer"),
    [
        ("released", SUM, WANTED, "disputed", {"receipt": "disputed"}),
        ("releasing", None, WANTED, "disputed", {"receipt": "disputed"}),
        ("released", OTHER, WANTED, "", {"receipt": "released", "sha256": SUM}),
        ("released", SUM, replace(WANTED, identity=f"sha256:{OTHER}"), "", {"receipt": "released"}),
        ("verified", SUM, WANTED, "", {"receipt": "verified"}),
        ("given_up", SUM, WANTED, "", {"receipt": "given_up"}),
    ],
)
def test_a_fetch(
    state: ReceiptState, sha256: str | None, wanted: RemoteFile, written: str, answer: dict[str, str]
) -> None:
    change = fetched_again(replace(HERE, state=state), sha256, wanted, "me")
    assert told(change) == (written, "fetch_asked" if written else "") and change.answer == answer


def test_what_nothing_tells_where_it_is_cannot_be_fetched() -> None:
    assert "not listed any more" in fetched_again(replace(HERE, state="released"), SUM, None, "me").refusal
