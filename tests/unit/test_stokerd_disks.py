"""A disk that has not answered yet, and a look at one that cannot be recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.store.errors import StorageError
from stokerd.sharding.effects import Effect, Write
from support.shard_state import MakeShard


def test_another_look_follows_one_whose_findings_could_not_be_recorded(make_shard: MakeShard) -> None:
    shard = make_shard()
    source = shard.source(state="staged")
    record = shard.layout.source(source.dataset, source.path)
    record.unlink()
    record.mkdir()
    with pytest.raises(StorageError):
        shard.look(parquet=())
    assert not shard.state.hot.is_known
    record.rmdir()
    shard.look(parquet=())
    assert shard.state.hot.is_known
    assert shard.on_disk().state == "seen"


def test_a_handler_lets_go_of_what_it_holds_as_soon_as_an_effect_fails(make_shard: MakeShard) -> None:
    shard, held = make_shard(), ["the lock"]
    source = shard.source()
    record = shard.layout.source(source.dataset, source.path)
    record.unlink()
    record.mkdir()

    def handler() -> Iterator[Effect]:
        try:
            yield Write(source)
        finally:
            held.clear()

    with pytest.raises(StorageError) as caught:
        shard.effects.apply(handler())
    assert caught.tb is not None, "what failed is still being dealt with"
    assert not held
