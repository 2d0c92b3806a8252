"""A power cut anywhere in a build: what the next worker makes of it is byte for byte the same set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker.shards.build.publish
import stoker.shards.format.manifest
from crash.checker import Crash, CrashFound, CrashReport, check_crashes
from stoker.shards.build.build_worker import main
from stoker.shards.build.shard_writer import GrowingFile
from stoker.shards.format.proof import prove_set
from support.builds import Recorder, build_task, set_bytes, small_tokenizer
from support.text import documents, write_parquet

# How many of the states that a cut may leave are tried: a sample, and more of them in the long gear.
SAMPLES = pytest.mark.parametrize("states", [8, pytest.param(80, marks=pytest.mark.long)])


class CrashSite:
    """A tiny build whose source lies outside the directory that crashes."""

    def __init__(self, home: Path) -> None:
        self.parquet = write_parquet(home / "tiny.parquet", documents(24), row_group=8)
        self.tokenizer = small_tokenizer(home / "tokenizer.json")
        self.resumed: set[tuple[int, int]] = set()
        self.build(home / "peace")
        self.reference = set_bytes(Path(self.task(home / "peace")["target"]))

    def task(self, root: Path) -> dict[str, Any]:
        return build_task(root, self.parquet, self.tokenizer, read_rows=4, every_s=0.0, shard_tokens=700)

    def build(self, root: Path) -> None:
        recorder = Recorder()
        main(self.task(root), recorder)
        self.resumed |= {
            (message["row_group"], message["row"])
            for message in recorder.messages
            if message.get("phase") == "open"
        }

    def whole(self, root: Path, _: Crash) -> None:
        target = Path(self.task(root)["target"])
        assert prove_set(target).verdict == "proven"
        assert set_bytes(target) == self.reference
        assert list((root / "hot" / ".building").iterdir()) == []

    def break_off(self, root: Path) -> None:
        """Leave a build as a kill would: commits made, bytes beyond them, and a file nobody committed."""
        task = self.task(root)

        class StopsAfterThree(Recorder):
            def __call__(self, kind: str, **fields: Any) -> None:
                super().__call__(kind, **fields)
                self.stopping = sum(message["kind"] == "commit" for message in self.messages) >= 3

        with pytest.raises(InterruptedError):
            main(task, StopsAfterThree())
        building = Path(task["building"])
        with (building / "train-00000.bin").open("ab") as file:
            file.write(b"beyond the commit")
        (building / "train-00099.bin").write_bytes(b"never committed")

    def stop_before_sealing(self, root: Path) -> None:
        """Leave a build with everything committed and nothing sealed."""

        class StopsAtSeal(Recorder):
            def __call__(self, kind: str, **fields: Any) -> None:
                if fields.get("phase") == "seal_hash":
                    raise InterruptedError

        with pytest.raises(InterruptedError):
            main(self.task(root), StopsAtSeal())

    def check(
        self, states: int, *, seed: int, prepare: Callable[[Path], None] = lambda root: None
    ) -> CrashReport:
        return check_crashes(
            self.build, self.build, self.whole, prepare=prepare, max_states=states, seed=seed
        )


@pytest.fixture
def site(tmp_path: Path) -> CrashSite:
    return CrashSite(tmp_path)


@SAMPLES
def test_a_build_cut_off_anywhere_ends_in_the_same_bytes(site: CrashSite, states: int) -> None:
    report = site.check(states, seed=1)
    assert report.trees > states / 2
    assert site.resumed - {(0, 0)}  # it went on from commits; from how many is a matter of what was cut off


@SAMPLES
def test_a_recovery_cut_off_in_its_turn_ends_in_the_same_bytes(site: CrashSite, states: int) -> None:
    assert site.check(states, seed=4, prepare=site.break_off).trees > states / 4


@SAMPLES
def test_a_seal_cut_off_anywhere_ends_in_the_same_bytes(site: CrashSite, states: int) -> None:
    assert site.check(states, seed=5, prepare=site.stop_before_sealing).trees > states / 4


def test_data_claimed_before_it_is_durable_would_be_found(
    site: CrashSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: GrowingFile, *, close: bool) -> None:
        if close:
            self.close()

    monkeypatch.setattr(GrowingFile, "make_durable", forget)
    with pytest.raises(CrashFound):
        site.check(80, seed=2)


def test_a_rename_before_its_content_would_be_found(site: CrashSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(building: Path, target: Path) -> None:
        building.rename(target)

    def no_sync(path: Path, data: bytes, **_: object) -> None:
        path.write_bytes(data)

    monkeypatch.setattr(stoker.shards.build.publish, "publish_dir", hasty)
    for module in (stoker.shards.build.publish, stoker.shards.format.manifest):
        monkeypatch.setattr(module, "write_atomic", no_sync)
    with pytest.raises(CrashFound):
        site.check(80, seed=3, prepare=site.stop_before_sealing)
