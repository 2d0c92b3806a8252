"""The figures of a fetched source: kept up to date with each receipt, they are those of a look at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from stoker.corpus.fetch.selection import Wanted, next_step
from stoker.corpus.fetch.transfers import Transfers
from stoker.corpus.records.by_path import by_path, first
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stokerd.download.fetch_view import Figures

SUM, OTHER = "ab" * 32, "cd" * 32
PATHS = "abcdef"
STATES: tuple[ReceiptState, ...] = ("verified", "releasing", "released", "disputed", "given_up")
Write = tuple[str, ReceiptState, str]


def receipt(path: str, state: ReceiptState, sha256: str) -> Receipt:
    return Receipt("d", path, f"/l/{path}", 10, sha256, "", f"sha256:{sha256}", state)


class Source:
    """As the daemon keeps it: what is wanted, some of it meant, the open ones, one asked for beside them."""

    def __init__(self) -> None:
        sizes = zip(PATHS, (1, 20, None, 300, 4000, 50000), strict=True)
        files = [(path, Wanted(path, size, f"sha256:{SUM}")) for path, size in sizes]
        self.wanted = by_path(files)
        self.meant = first(self.wanted, 5)
        self.again = {"z": Wanted("z", 7, f"sha256:{SUM}", "http://h/z")}
        self.receipts: dict[str, Receipt] = {}
        self.open = {**self.meant, **self.again}
        self.figures, self.finds = Figures(), 0

    def write(self, written: Receipt) -> None:
        self.receipts[written.path] = written
        if written.path in self.meant:
            step = next_step(written, self.meant[written.path], f"/l/{written.path}")
            if not step:
                self.open.pop(written.path, None)
            elif written.path not in self.open:  # all is looked at then
                self.open = {**self.open, written.path: self.meant[written.path]}
                self.finds += 1
        self.figures.moved(written.path)

    def told(self, figures: Figures) -> tuple[object, ...]:
        figures.take(self.finds, self.wanted, self.open, self.receipts, meant=self.meant, again=self.again)
        return figures.counts(1), figures.how_far(Transfers()), figures.given_up


@given(
    some.lists(
        some.tuples(some.sampled_from(PATHS), some.sampled_from(STATES), some.sampled_from([SUM, OTHER]))
    )
)
def test_kept_figures_are_those_of_a_look_at_all(writes: list[Write]) -> None:
    source = Source()
    assert source.told(source.figures) == source.told(Figures())
    for write in writes:
        source.write(receipt(*write))
        assert source.told(source.figures) == source.told(Figures())


def test_what_is_left_shrinks_with_each_file_that_came() -> None:
    source = Source()
    counts, how_far, _ = source.told(source.figures)
    assert isinstance(counts, dict) and counts["waiting"] == 5 and counts["fetching"] == 1
    assert isinstance(how_far, dict) and how_far["bytes_of"] == 4321
    assert how_far["bytes_done"] == 0
    for path in "abcde":
        source.write(receipt(path, "verified", SUM))
    counts, how_far, _ = source.told(source.figures)
    assert counts == {**dict.fromkeys(counts, 0), "verified": 5, "fetching": 1}
    assert how_far["bytes_done"] == 4321 - 7  # one is asked for again that nobody lists
