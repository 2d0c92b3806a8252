"""What is known of a source's files, kept up to date receipt by receipt, is what a look at all would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from stoker.corpus.fetch.decide import RemoteRules
from stoker.corpus.http.hub import HubRepo
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.worklist import Worklist

SUM, OTHER = "ab" * 32, "cd" * 32
PATHS = "abcdef"
RULES = RemoteRules("/l", HubRepo("org/data", endpoint="https://hub"))
STATES: tuple[ReceiptState, ...] = ("verified", "releasing", "released", "disputed", "given_up")


def receipt(path: str, state: ReceiptState, sha256: str = SUM) -> Receipt:
    return Receipt("d", path, f"/l/{path}", 10, sha256, "c" * 40, f"sha256:{sha256}", state)


class Source:
    """Six listed files, five of them selected, beside one that is receipted and not listed any more."""

    def __init__(self) -> None:
        sizes = zip(PATHS, (1, 20, None, 300, 4000, 50000), strict=True)
        self.listed = {path: RemoteFile(path, size, f"sha256:{SUM}") for path, size in sorted(sizes)}
        self.receipts = {"z": receipt("z", "verified")}
        self.work = self.looked_at()

    def looked_at(self) -> Worklist[RemoteFile]:
        work = Worklist(RULES, self.receipts)
        work.take(self.listed, {path: self.listed[path] for path in PATHS[:5]})
        return work

    def write(self, path: str, state: ReceiptState, sha256: str = SUM) -> None:
        self.receipts[path] = receipt(path, state, sha256)
        self.work.note(path)


def facts(work: Worklist[RemoteFile]) -> tuple[object, ...]:
    return work.pending, work.reasked, dict(work.counts), work.bytes, work.bytes_left


@given(
    some.lists(
        some.tuples(
            some.sampled_from([*PATHS, "z"]), some.sampled_from(STATES), some.sampled_from([SUM, OTHER])
        )
    )
)
def test_kept_facts_are_those_of_a_look_at_all(writes: list[tuple[str, ReceiptState, str]]) -> None:
    source = Source()
    for write in writes:
        source.write(*write)
        assert facts(source.work) == facts(source.looked_at())


def test_what_is_left_shrinks_with_each_file_that_came() -> None:
    source, work = Source(), Source().work
    assert (work.bytes, work.bytes_left, work.counts["waiting"]) == (4321, 4321, 6)
    work = source.work
    for path in "abcde":
        source.write(path, "verified")
    assert (work.bytes_left, work.counts["waiting"], work.counts["verified"]) == (0, 1, 5)
    source.write("z", "disputed")  # not listed any more: it comes because somebody asked
    assert (list(work.pending), work.bytes_left, work.counts["disputed"]) == (["z"], 10, 0)
    source.write("z", "verified")
    assert not work.pending and not work.reasked


def test_files_come_in_listing_order_and_what_somebody_asked_for_comes_first() -> None:
    source = Source()
    assert [each.path for each in source.work.next(2, lambda path: path != "b")] == ["a", "c"]
    source.write("d", "verified")
    source.write("b", "given_up")  # keeps its place
    assert list(source.work.pending) == ["a", "b", "c", "e"]
    source.write("d", "disputed")
    assert [each.path for each in source.work.next(9, lambda path: True)] == ["d", "a", "b", "c", "e"]
    assert source.work.next(0, lambda path: True) == []
