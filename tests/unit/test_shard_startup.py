"""What a start brings in line with the configuration: as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.dataset import write_pin
from stoker.corpus.records.receipts import Listing, write_listing
from stoker.store.errors import DataError, UnavailableError, UnknownFormat
from stoker.store.record import read_record, write_record
from stokerd.sharding.record_actions import bring_in_line
from support.shard_state import MakeShard, Shard


def line_up(shard: Shard) -> list[str]:
    shard.start()
    return shard.apply(bring_in_line(shard.dataset))


def test_where_nothing_changed_nothing_is_written(shard: Shard) -> None:
    shard.source(state="proven")
    shard.source("b", "quarantined", reason="x", column="text")
    assert line_up(shard) == []


def test_another_version_has_every_set_made_again_but_what_no_file_has(make_shard: MakeShard) -> None:
    shard = make_shard(dataset__version=2)
    shard.pin()
    write_pin(shard.layout, replace(shard.data.pin(), version=1))
    shard.source("built", "proven", formers=(("f" * 64, 7),))
    shard.source("former", "proven", former="built")
    shard.source("staged", "staged")
    shard.source("failed", "quarantined", reason="download_failed")
    assert line_up(shard) == ["start over", "Forget"]
    assert shard.data.states() == {"built": "seen", "staged": "staged", "failed": "quarantined"}
    assert shard.on_disk("built").formers == ()


def test_what_was_quarantined_for_a_column_that_is_not_read_now_starts_over(shard: Shard) -> None:
    shard.source(state="quarantined", reason="x", column="language")
    assert line_up(shard) == ["start over"]


def test_without_warm_its_copies_are_lost(shard: Shard) -> None:
    shard.source("hot", "synced", on_warm=True)
    shard.source("cold", "synced", on_warm=True, evicted=True)
    assert sorted(line_up(shard)) == ["start over", "warm_forgotten", "write proven"]
    assert shard.data.states() == {"hot": "proven", "cold": "seen"}


def test_a_change_that_was_cut_off_between_two_records_is_as_if_it_had_not_begun(shard: Shard) -> None:
    proven = shard.source(state="proven")
    shard.source("a@1", "proven", content="a", former="a")
    assert line_up(shard) == ["write duplicate"]
    assert shard.on_disk() == proven


def test_a_lost_record_of_a_former_content_is_made_again(shard: Shard) -> None:
    shard.source(formers=(("f" * 64, 7),))
    assert line_up(shard) == ["write seen"]
    (former,) = (one for one in shard.data.sources().values() if one.former)
    assert (former.former, former.sha256, former.size) == ("a", "f" * 64, 7)


def test_a_damaged_record_is_set_aside_and_the_others_go_on(shard: Shard) -> None:
    shard.source("a", "proven")
    shard.source("b", "proven")
    shard.layout.source("prose", "a").write_bytes(b"{")
    shard.start()
    assert list(shard.dataset.sources) == ["b"]
    assert shard.events.words[-1] == "record_damaged"


def test_a_list_of_files_needs_a_listing_and_every_name_of_it_there(
    make_shard: MakeShard, tmp_path: Path
) -> None:
    shard = make_shard()
    (tmp_path / "list").write_text("x\nb\nc/c\n")
    shard.context.files_list, shard.context.once = str(tmp_path / "list"), True
    shard.start()
    with pytest.raises(UnavailableError, match="run `stoker-download-watchdog FILE --once` first"):
        shard.read()
    write_listing(shard.layout, Listing("prose", (("a", 1), ("b", 1)), complete=True, revision=""))
    with pytest.raises(DataError, match="not in the listing of the source: c/c, x; correct the list"):
        shard.read()
    (tmp_path / "list").write_text("b\n")
    shard.start()
    shard.read()


def test_a_pin_that_a_newer_stoker_wrote_stops_the_start_and_stays_as_it_is(shard: Shard) -> None:
    pin = shard.layout.dataset("prose")
    write_record(pin, {**read_record(pin), "v": 2})
    written = pin.read_bytes()
    with pytest.raises(UnknownFormat, match="is of format version 2, this Stoker reads version 1"):
        shard.start()
    assert pin.read_bytes() == written
