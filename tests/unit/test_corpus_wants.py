"""What is done about a fetched file, by its receipt and what is listed; and when all of it is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.corpus.fetch.decide import (
    RemoteRules,
    parse,
    speaks_of,
    stretch_of,
)
from stoker.corpus.http.hub import HubRepo
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.sources import Source as SourceRecord
from stoker.corpus.records.worklist import Worklist
from stoker.corpus.source.remote_listing import Listed, NotListed, listing_outcome
from stoker.kit.workers.parent import WorkerExit
from stokerd.download.fetcher import blame
from stokerd.download.source import Source
from stokerd.download.state import Transfers
from support.books import books_of
from support.pipelines import make_pipeline

SHA, OTHER = "a" * 64, "b" * 64
FILE = "/hot/landing/data/x.parquet"
REPO = HubRepo("org/data", endpoint="https://hub")
RULES = RemoteRules(str(Path(FILE).parent), REPO)


def receipt(state: ReceiptState = "verified", etag: str = f"sha256:{SHA}", file: str = FILE) -> Receipt:
    return Receipt("data", "x.parquet", file, 10, SHA, "c" * 40, etag, state)


def wanted(
    path: str = "x.parquet", sha256: str | None = SHA, git: str | None = None, url: str = ""
) -> RemoteFile:
    return RemoteFile.listed(path, 10, sha256, git, url)


@pytest.mark.parametrize(
    ("state", "same", "here", "step"),
    [
        ("verified", True, True, "remove-never"),
        ("verified", True, False, "bring"),
        ("verified", False, True, "release"),
        ("verified", False, False, "bring"),
        ("disputed", True, True, "bring"),
        ("disputed", False, True, "release"),
        ("releasing", True, True, "remove"),
        ("releasing", False, False, "remove"),
        ("released", True, True, ""),
        ("released", False, True, "bring"),
        ("given_up", True, True, "bring"),
        ("given_up", False, True, "bring"),
    ],
)
def test_the_next_step_follows_from_receipt_and_listing(
    state: ReceiptState, same: bool, here: bool, step: str
) -> None:
    listed = wanted() if same else wanted(sha256=OTHER)
    known = receipt(state, file=FILE if here else "/elsewhere/x.parquet")
    assert RULES.step(listed, known) == ("" if step == "remove-never" else step)


def test_a_file_without_a_receipt_is_brought() -> None:
    assert RULES.step(wanted(), None) == "bring"


def test_a_content_is_known_by_its_sum_however_it_was_listed_before() -> None:
    by_url = receipt(etag=wanted(sha256=None, url="https://x/1").identity)
    assert speaks_of(by_url, wanted(sha256=None, url="https://x/1"))
    assert not speaks_of(by_url, wanted(sha256=None, url="https://x/2"))
    assert speaks_of(by_url, wanted(url="https://x/2"))  # its sum is listed now
    assert not speaks_of(replace(by_url, sha256=""), wanted(sha256=None, git="0" * 40))


def test_the_wish_names_what_the_listing_knows() -> None:
    file = wanted("d/x y.parquet").at(REPO, "c" * 40)
    assert (file.sha256, file.git, file.size) == (SHA, None, 10)
    assert file.url == f"https://hub/datasets/org/data/resolve/{'c' * 40}/d/x%20y.parquet"
    small = wanted(sha256=None, git="1" * 40).at(REPO, "c" * 40)
    assert (small.sha256, small.git) == (None, "1" * 40)
    assert wanted(sha256=None, url="https://x/1").at(None, "r").url == "https://x/1"


def test_what_is_not_listed_any_more_can_come_from_its_old_commit() -> None:
    again = RULES.wanted_again(receipt("disputed"))
    assert again is not None and again.identity == f"sha256:{SHA}" and "c" * 40 in again.url
    assert RemoteRules("/l", None).wanted_again(receipt("disputed")) is None
    assert RULES.wanted_again(receipt("disputed", etag="10-1-2")) is None


@pytest.mark.parametrize(
    ("states", "selected", "is_complete"),
    [
        ({"a": "verified", "b": "released", "c": "given_up"}, "abc", True),
        ({"a": "verified", "b": "released", "c": "disputed"}, "abc", False),
        ({"a": "verified", "b": "released"}, "abc", False),
        ({"a": "verified", "b": "released"}, "ab", True),
        ({}, "", False),
        # Nothing but files that were given up: whatever is wrong is wrong with the source.
        ({"a": "given_up", "b": "given_up", "c": "given_up"}, "abc", False),
    ],
)
def test_complete_needs_every_file_and_one_that_came(
    states: dict[str, ReceiptState], selected: str, is_complete: bool
) -> None:
    book = {
        path: replace(receipt(to, file=f"/hot/landing/data/{path}"), path=path) for path, to in states.items()
    }
    work = Worklist(RULES, book)
    work.take({path: wanted(path) for path in "abc"}, {path: wanted(path) for path in selected})
    source: Any = SimpleNamespace(state=SimpleNamespace(work=work), is_whole=True)
    assert Source.is_complete.fget(source) == is_complete  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "same", "here", "shown", "is_pending"),
    [
        ("verified", True, True, "verified", False),
        ("unproven", True, True, "unproven", False),
        ("verified", True, False, "waiting", True),
        ("verified", False, True, "waiting", True),
        ("disputed", True, True, "disputed", True),
        ("releasing", True, True, "releasing", True),
        ("releasing", False, True, "waiting", True),
        ("released", True, True, "released", False),
        ("given_up", True, True, "given_up", True),
        ("given_up", False, True, "waiting", True),
    ],
)
def test_a_file_is_shown_by_its_receipt_unless_other_content_has_to_come(
    state: ReceiptState, same: bool, here: bool, shown: str, is_pending: bool
) -> None:
    known = receipt(state, file=FILE if here else "/elsewhere/x.parquet")
    assert RULES.state_of(wanted() if same else wanted(sha256=OTHER), known) == (shown, is_pending)
    assert RULES.state_of(wanted(), None) == ("waiting", True)
    assert (RULES.wanted_again(known) is not None) == (state == "disputed")


def heard(transfers: Transfers, now: float, **message: Any) -> None:
    transfers.hear(parse(message), now)


def test_transfers_count_each_byte_once_and_show_who_is_at_work() -> None:
    transfers = Transfers()
    transfers.add("a", 100, None)
    transfers.add("b", None, None)
    said: list[dict[str, Any]] = [
        {"kind": "start", "path": "a", "offset": 40},
        {"kind": "progress", "path": "a", "bytes": 70, "received": 30},
        {"kind": "start", "path": "b", "offset": 0},
        {"kind": "retry", "path": "b", "class": "short", "wait_s": 1.0},
        {"kind": "done", "path": "a", "size": 100, "fetched": 60, "how": "fetched"},
        {"kind": "progress", "path": "unknown", "bytes": 7, "received": 7},
    ]
    for now, message in enumerate(said):
        heard(transfers, float(now), **message)
    assert (transfers.durable, transfers.received) == (60, 60)
    assert transfers.how_far(1000, 500, 0.0)["bytes_done"] == 600  # 100 of those left are under way
    assert transfers.to_come_bytes() == 0
    assert transfers.in_hand() == 1
    assert [each["path"] for each in transfers.shown(20)] == ["a"]
    heard(transfers, 20.0, kind="progress", path="b", bytes=50, received=50)
    told = transfers.how_far(1000, 500, 20.0)
    assert told == {"bytes_of": 1000, "bytes_done": 650, "rate_bytes_per_second": 2, "eta_s": 140}
    for path in "ab":
        transfers.pop(path)
    told = transfers.how_far(1000, 500, 20.0)  # all is here: no rate that fades away for a minute
    assert told == {"bytes_of": 1000, "bytes_done": 500, "rate_bytes_per_second": 0, "eta_s": None}


def test_a_kept_file_is_no_transfer() -> None:
    transfers = Transfers()
    transfers.add("a", 100, None)
    heard(transfers, 0.0, kind="hashing", path="a", bytes=50)
    heard(transfers, 1.0, kind="done", path="a", size=100, fetched=0, how="kept")
    assert (transfers.durable, transfers.received) == (0, 0)


@pytest.mark.parametrize(
    ("cause", "is_repo", "something_came", "blamed"),
    [
        ("disk_full", True, False, "disk"),
        ("gone", False, True, "disk"),
        ("storage", True, False, "ours"),
        ("bug", True, False, "ours"),
        ("gated", True, True, "access"),
        ("vanished", True, True, "access"),
        ("forbidden", True, False, "access"),
        ("forbidden", True, True, "file"),
        ("forbidden", False, False, "file"),
        ("unauthorized", False, False, "file"),
        ("missing", True, False, "file"),
        ("mismatch", True, False, "file"),
    ],
)
def test_only_what_the_file_earned_gives_it_up(
    cause: str, is_repo: bool, something_came: bool, blamed: str
) -> None:
    assert blame(cause, is_repo=is_repo, something_came=something_came) == blamed


@pytest.mark.parametrize(
    ("code", "result", "cause", "is_final", "is_config"),
    [
        (0, {"status": "failed", "class": "gated", "reason": "no"}, "gated", True, False),
        (0, {"status": "failed", "class": "throttled", "reason": "no"}, "throttled", False, False),
        (0, {"status": "failed", "class": "list", "reason": "no"}, "list", True, True),
        (0, {"status": "listed", "revision": "r", "refused": [], "refused_in_all": 0}, "empty", True, False),
        (70, None, "died", False, False),
        (69, None, "died", True, False),
        (78, None, "died", True, True),
    ],
)
def test_why_there_is_no_listing(
    code: int, result: dict[str, Any] | None, cause: str, is_final: bool, is_config: bool
) -> None:
    ended = WorkerExit("finished" if code == 0 else "failed", code, None, result, None, 0)
    found = listing_outcome(ended, (), "the hub")
    assert isinstance(found, NotListed)
    assert (found.cause, found.is_final, found.is_config) == (cause, is_final, is_config)


def test_a_listing_is_in_path_order_and_one_that_is_known_brings_nothing_new() -> None:
    result = {"status": "listed", "revision": "r", "refused": [["a b", "no"]], "refused_in_all": 7}
    ended = WorkerExit("finished", 0, None, result, None, 0)
    found = listing_outcome(ended, (wanted("b"), wanted("a")), "the hub")
    assert isinstance(found, Listed) and list(found.files) == ["a", "b"]
    assert (found.revision, found.refused) == ("r", (("a b", "no"),))
    ended = replace(ended, result={"status": "unchanged", "revision": "r"})
    assert listing_outcome(ended, (), "the hub") is None


class TestStretch:
    """Seven files of 100 rows, a limit of rows, and a stretch of 2 + 1 files."""

    def stretch(
        self, home: Path, built: str, rows: int = 300, *, train_bytes: str = "10B"
    ) -> tuple[str, bool]:
        from stoker.corpus.records.receipts import Listing

        pipeline = make_pipeline(
            home,
            dataset__limit={"rows": rows},
            download={"files_at_once": 1},
            stage={"queue_files": 2},
            tokenizer={"train": {"train_bytes": train_bytes}},
        ).pipeline
        listing = Listing("prose", tuple((path, 10) for path in "abcdefg"), complete=False, revision="r")
        books = books_of(1, rows=100)
        sources = {
            path: SourceRecord("prose", path, 10, path * 64, state="released", key="k", books=books)
            for path in built
        }
        found = stretch_of(listing, sources, pipeline)
        return "".join(sorted(found[0])), found[1]

    def test_it_moves_with_what_is_counted_and_ends_with_the_slice(self, tmp_path: Path) -> None:
        assert self.stretch(tmp_path, "") == ("abc", False)
        assert self.stretch(tmp_path, "b") == ("abcd", False)
        assert self.stretch(tmp_path, "ab") == ("abcde", False)
        assert self.stretch(tmp_path, "abc") == ("abc", True)
        assert self.stretch(tmp_path, "abcde", rows=9000) == ("abcdefg", True)

    def test_the_tokenizers_files_come_whatever_the_stretch(self, tmp_path: Path) -> None:
        assert self.stretch(tmp_path, "", train_bytes="45B") == ("abcde", False)
