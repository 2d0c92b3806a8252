"""Checkpoints of a trainer of the user's own: which are found, when they are sealed, and which never."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.checkpoints import seal as seal_module
from stoker.checkpoints.external import find
from stoker.checkpoints.external import watch as watch_module
from stoker.checkpoints.external.find import Refused, expand, look_at, step_in
from stoker.checkpoints.external.sealing import Changed, seal_outside
from stoker.checkpoints.external.watch import Watch
from stoker.checkpoints.external.whole import why_not_whole
from stoker.checkpoints.mirror.mirror_worker import copy_checkpoint, fetch_checkpoint
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import remove_checkpoint, sweep_leftovers
from stoker.store.direct import DiskFullError
from support.checkpoint_data import body_of
from support.outside import Ground, archive, hf_files, tensors, write_tree

LOGS = {"plan.jsonl": b"", "timelines.jsonl": b""}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def sealed(ground: Ground, path: Path, step: int) -> Path:
    return seal_outside(
        look_at(path),
        ground.checkpoints,
        body_of(step),
        directory=ground.root,
        launch="l1",
        logs=LOGS,
        progress=lambda _: None,
    )


def hear(watch: Watch, step: int, *, at: float | None = None, **values: float) -> None:
    watch.heard.append((time.time() if at is None else at, {"step": step, **values}))


class TestFinding:
    def test_the_step_of_a_name(self) -> None:
        steps = {
            **{"checkpoint-100": 100, "step_000200.pt": 200, "epoch=3-step=4000.ckpt": 4000, "STEP7": 7},
            **{"ckpt.pt": None, "last.ckpt": None, "iter_0000300": 300, "ckpt.12": 12},
            **{"epoch=2-loss=0.35.ckpt": None, "epoch_3.pt": None, "step-12-loss=3.25": 12, "9" * 30: None},
        }
        assert {name: step_in(name) for name in steps} == steps

    def test_a_glob_finds_what_it_names_and_follows_no_link(self, ground: Ground) -> None:
        for name in ("run1/step-1/x", "run1/step-2/x", "run2/deep/step-3/x", ".hidden/step-4/x"):
            write_tree(ground.out, {name: b"x"})
        (ground.out / "run1" / "step-9").symlink_to(ground.out / "run1" / "step-1")
        (ground.out / "run3").symlink_to(ground.out / "run1")
        aside = ground.out / "run1" / "step-5.before-20261123T030000Z-0123abcd"
        aside.mkdir()

        found, links = expand(ground.root, "out/**/step-*")
        assert [str(path.relative_to(ground.out)) for path in found] == [
            *("run1/step-1", "run1/step-2", "run2/deep/step-3"),
        ]
        assert links == [ground.out / "run1" / "step-9"]
        assert expand(ground.root, f"{ground.out}/run?/step-[12]")[0] == found[:2]
        # The names without a wildcard are the user's own, and may be links.
        assert expand(ground.root, "out/run3/step-1")[0] == [ground.out / "run3" / "step-1"]
        assert expand(ground.root, "nowhere/*") == ([], [])

    def test_a_glob_that_matches_thousands_is_refused(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(find, "MOST_FILES", 3)
        write_tree(ground.out, {f"{n}": b"" for n in range(4)})
        with pytest.raises(Refused, match="more than 3 paths"):
            expand(ground.root, "out/*")
        with pytest.raises(Refused, match="more than 3 files"):
            look_at(ground.out)

    def test_links_pipes_and_odd_names_inside_are_refused(self, ground: Ground) -> None:
        for number, name in enumerate([b"a\nb", b"\xff\xfe", b"back\\slash"]):
            folder = ground.out / str(number)
            folder.mkdir()
            (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"")
            with pytest.raises(Refused, match="sha256sum"):
                look_at(folder)
        for name, make in {"link": lambda path: path.symlink_to("/etc/passwd"), "pipe": os.mkfifo}.items():
            (ground.out / name).mkdir()
            make(ground.out / name / "x")
            with pytest.raises(Refused, match="only files and directories"):
                look_at(ground.out / name)


class TestWhole:
    def test_half_of_each_known_kind_is_told_from_the_whole(self, ground: Ground) -> None:
        whole = {
            **{"hf": hf_files(), "dcp": {"__0_0.distcp": b"x", ".metadata": b"m"}},
            **{"torch": {"a.pt": archive(b"x" * 1000)}, "safe": {"a.safetensors": tensors(b"12345")}},
            **{"other": {"state.msgpack": b"x", "old.pt": b"\x80\x02 not an archive"}},
        }
        for name, files in whole.items():
            assert why_not_whole(look_at(write_tree(ground.out / name, files))) == "", name
        half = {
            "hf": {name: data for name, data in hf_files().items() if name != "trainer_state.json"},
            "dcp": {"__0_0.distcp": b"x"},
            "torch": {"a.pt": archive(b"x" * 1000)[:-10]},
            "safe": {"a.safetensors": tensors(b"12345")[:-1]},
            "header": {"a.safetensors": tensors(b"12345")[:20]},
            "empty": {"a.safetensors": b""},
            "jit": {**hf_files(), "checkpoint-is-incomplete.txt": b""},
        }
        for name, files in half.items():
            assert why_not_whole(look_at(write_tree(ground.out / f"half-{name}", files))), name


class TestSealing:
    def test_a_tree_is_sealed_proven_mirrored_and_brought_back(self, ground: Ground) -> None:
        files = {**hf_files(b"w" * 5000), "global_step5/.zero/rank0.pt": archive(b"z"), "empty": b""}
        source = write_tree(ground.out / "checkpoint-5", files)
        path = sealed(ground, source, 5)

        copies = path / "files" / "checkpoint-5"
        assert {name: (copies / name).read_bytes() for name in files} == files
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True)
        proof = prove_checkpoint(path)
        assert (proof.verdict, proof.extra) == ("proven", ())
        external = json.loads((path / "checkpoint.json").read_bytes())["external"]
        assert (external["path"], external["kind"]) == ("out/checkpoint-5", "directory")

        assert proof.digest is not None
        copy = ground.root / "warm" / f"step-000000005-{proof.digest[:8]}"
        copy.parent.mkdir()
        assert not copy_checkpoint(path, copy, proof.digest, lambda _: None)
        assert remove_checkpoint(path)
        assert fetch_checkpoint(copy, ground.checkpoints, lambda _: None).digest == proof.digest
        assert (copies / "global_step5/.zero/rank0.pt").read_bytes() == archive(b"z")

    def test_a_proof_looks_into_the_folders_that_are_listed_and_no_others(self, ground: Ground) -> None:
        path = sealed(ground, write_tree(ground.out / "checkpoint-5", hf_files()), 5)
        extra = path / "files" / "checkpoint-5" / "extra"
        extra.mkdir()
        assert prove_checkpoint(path).extra == ("files/checkpoint-5/extra",)
        model = path / "files" / "checkpoint-5" / "model.safetensors"
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
        proof = prove_checkpoint(path)
        assert (proof.verdict, proof.reason) == (
            "invalid",
            "sha256 of files/checkpoint-5/model.safetensors differs",
        )
        (path / "files" / "checkpoint-5").rename(path / "elsewhere")
        (path / "files" / "checkpoint-5").symlink_to(path / "elsewhere")
        assert prove_checkpoint(path).reason == "files/checkpoint-5 is no directory"

    @pytest.mark.parametrize("how", ["grows", "replaced", "shrinks", "gone"])
    def test_what_changes_while_it_is_copied_is_not_sealed(self, ground: Ground, how: str) -> None:
        source = write_tree(ground.out / "checkpoint-5", {"a.bin": b"1" * 10_000, "b.bin": b"2"})

        def meddle(_: int) -> None:
            match how:
                case "grows":
                    with (source / "a.bin").open("ab") as file:
                        file.write(b"more")
                case "replaced":
                    source.rename(ground.out / f"old-{os.urandom(4).hex()}")
                    write_tree(source, {"a.bin": b"3" * 10_000, "b.bin": b"2"})
                case "shrinks":
                    os.truncate(source / "b.bin", 0)
                case _:
                    (source / "b.bin").unlink(missing_ok=True)

        with pytest.raises(Changed):
            seal_outside(
                look_at(source),
                ground.checkpoints,
                body_of(5),
                directory=ground.root,
                launch="l1",
                logs=LOGS,
                progress=meddle,
            )
        assert ground.sealed == []

    def test_a_copy_that_would_fill_the_disk_is_not_begun(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = ground.save("step-5.pt", b"x" * 4000)
        monkeypatch.setattr(seal_module, "SPARE_BYTES", 1 << 60)
        with pytest.raises(DiskFullError):
            sealed(ground, source, 5)
        assert ground.sealed == []

    def test_sealing_survives_every_crash(self) -> None:
        def prepare(root: Path) -> None:
            ground = Ground(root)
            write_tree(ground.out / "step-8", {"a.bin": b"8" * 100})
            write_tree(ground.out / "step-16", {"a.bin": b"16" * 100, "deep/b.bin": b"x"})
            sealed(ground, ground.out / "step-8", 8)

        def write(root: Path) -> None:
            ground = Ground(root)
            acknowledge(sealed(ground, ground.out / "step-16", 16).name)

        def recover(root: Path) -> None:
            sweep_leftovers(root / "state" / "checkpoints")

        def invariant(root: Path, crash: Crash) -> None:
            there = {path.name for path in (root / "state" / "checkpoints").iterdir()}
            assert {"step-000000008", *crash.acknowledged} <= there <= {"step-000000008", "step-000000016"}
            for name in there:
                assert prove_checkpoint(root / "state" / "checkpoints" / name).verdict == "proven"

        report = check_crashes(write, recover, invariant, prepare=prepare, max_states=400)
        assert report.trees > 50


class TestWatching:
    def test_a_path_is_sealed_once_it_is_quiet_and_whole(self, ground: Ground) -> None:
        watch = ground.watch()
        files = hf_files()
        last = files.pop("trainer_state.json")
        source = write_tree(ground.out / "checkpoint-5", files)
        ground.quiet(watch)
        assert ground.sealed == []
        assert "trainer_state.json" in ground.told("refused")[0]["reason"]

        (source / "trainer_state.json").write_bytes(last)
        watch.look()
        assert ground.sealed == []  # it has changed just now
        ground.now += watch.quiet_s
        watch.look()
        assert ground.sealed == ["step-000000005"]
        ground.quiet(watch)
        assert [one["step"] for one in ground.told("sealed")] == [5]

    def test_a_told_path_is_sealed_at_once_with_what_was_told(self, ground: Ground) -> None:
        watch = ground.watch(None)
        path = ground.save("ckpt.pt", b"one")
        hear(watch, 70, tokens=700, val_loss=2.5)
        hear(watch, 75, tokens=750, val_loss=2.4)
        watch.hear(str(path), 70, time.time())
        watch.look()
        body = json.loads((ground.checkpoints / "step-000000070" / "checkpoint.json").read_bytes())
        assert (body["tokens"], body["val_loss"], body["external"]["path"]) == (700, 2.5, "out/ckpt.pt")
        (ground.root / "timelines.jsonl").unlink()  # the supervisor restores it from an older checkpoint
        ground.save("ckpt.pt", b"the second")
        watch.hear("out/ckpt.pt", 80, time.time())
        watch.look()
        assert ground.sealed == ["step-000000070", "step-000000080"]

    def test_a_path_that_was_written_again_since_it_was_told_waits_for_its_word(self, ground: Ground) -> None:
        watch = ground.watch(None)
        path = ground.save("ckpt.pt", b"of step 15")
        saved_at = path.stat().st_mtime
        hear(watch, 20, at=saved_at + 0.5)  # it is fast, and each word may come late
        watch.hear("out/ckpt.pt", 10, saved_at - 1)
        watch.look()
        assert ground.sealed == []
        watch.hear("out/ckpt.pt", 15, saved_at + 0.1)
        watch.look()
        assert ground.sealed == ["step-000000015"]
        assert ground.told("taken") == [{"told": ["out/ckpt.pt", 15, saved_at + 0.1]}]  # not the word before
        ground.save("ckpt.pt", b"of another that is never told")
        watch.look()
        assert len(ground.sealed) == 1
        ground.quiet(watch)
        assert ground.sealed == ["step-000000015", "step-000000020"]

    def test_told_paths_outside_through_links_or_missing_are_refused(self, ground: Ground) -> None:
        watch = ground.watch(None)
        (ground.root / "link").symlink_to("/etc")
        own = (".", str(ground.root), "state", "state/checkpoints", "a\0b/x")
        for told in ("/etc/passwd", "../x", "out/../../x", "link/passwd", "nowhere.pt", *own):
            watch.hear(told, 1, time.time())
        watch.look()
        watch.look()
        assert len(ground.told("refused")) == 10
        assert ground.sealed == []

    def test_one_file_written_again_and_again_is_sealed_as_the_step_when_seen(self, ground: Ground) -> None:
        watch = ground.watch("out/gpt2.pt")  # the number in its name is no step
        for step in (100, 200, 300):
            hear(watch, step)
            ground.save("gpt2.pt", b"%d" % step)
            ground.quiet(watch)
            hear(watch, step + 50)
            ground.quiet(watch)
            watch = ground.watch("out/gpt2.pt")  # a watch that begins again knows it, too
        assert ground.sealed == ["step-000000002", "step-000000200", "step-000000300"]

    def test_its_step_is_the_newest_when_it_was_saved_however_late_it_is_seen(self, ground: Ground) -> None:
        watch = ground.watch("out/ckpt.pt")
        for step in range(100, 150, 10):
            hear(watch, step, at=1000.0 + step, loss=step / 10)
        for content, saved_at in ((b"a", 1112.0), (b"later", 1129.5)):
            os.utime(ground.save("ckpt.pt", content), (saved_at, saved_at))
            watch.look(is_at_rest=True)
        # What is heard within a second may have been printed before the save.
        assert ground.sealed == ["step-000000110", "step-000000130"]
        body = json.loads((ground.checkpoints / "step-000000110" / "checkpoint.json").read_bytes())
        assert body["loss"] == 11.0

    def test_without_any_step_they_are_counted(self, ground: Ground) -> None:
        watch = ground.watch()
        for number in range(3):
            ground.save("ckpt.pt", bytes(number + 1))
            ground.quiet(watch)
        assert ground.sealed == ["step-000000000", "step-000000001", "step-000000002"]

    def test_a_restart_takes_only_what_is_new(self, ground: Ground) -> None:
        for step in (10, 20):
            ground.save(f"step-{step}.pt", b"%d" % step)
        ground.watch().look(is_at_rest=True)
        assert ground.sealed == ["step-000000010", "step-000000020"]
        ground.words.clear()

        again = ground.watch()
        again.look(is_at_rest=True)
        ground.quiet(again)
        assert ground.words == [("well", {})]
        # A trainer that began again from the start writes steps that are sealed already.
        ground.save("step-10.pt", b"another")
        ground.quiet(again)
        assert "begin again" in ground.told("refused")[0]["reason"]
        assert len(ground.sealed) == 2

    def test_a_state_that_was_given_up_is_not_sealed_again(self, ground: Ground) -> None:
        for step in (10, 20):
            ground.save(f"step-{step}.pt", b"%d" % step)
        ground.watch().look(is_at_rest=True)
        (ground.abandoned / "t0").mkdir()
        (ground.checkpoints / "step-000000020").rename(ground.abandoned / "t0" / "step-000000020")
        again = ground.watch(history=((1, None), (0, 10)))
        again.look(is_at_rest=True)
        assert ground.sealed == ["step-000000010"]
        ground.save("step-20.pt", b"made again")
        again.look(is_at_rest=True)
        assert ground.sealed == ["step-000000010", "step-000000020"]

    def test_links_and_files_older_than_the_run_are_never_taken(self, ground: Ground) -> None:
        old = ground.save("step-5.pt", b"old")
        os.utime(old, (1000, 1000))
        (ground.out / "step-6.pt").symlink_to(old)
        watch = ground.watch(begun=2000.0)
        watch.look(is_at_rest=True)
        watch.look(is_at_rest=True)
        assert {Path(one["path"]).name for one in ground.told("refused")} == {"step-5.pt", "step-6.pt"}
        assert len(ground.told("refused")) == 2
        assert ground.sealed == []
        # With a clock that was set back behind the run's begin, times say nothing.
        ahead = ground.watch(begun=4e9)
        ahead.look(is_at_rest=True)
        assert ground.sealed == ["step-000000005"]

    def test_a_failing_disk_is_told_and_tried_again_ever_more_rarely(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any, **__: Any) -> Path:
            raise DiskFullError("no room")

        monkeypatch.setattr(watch_module, "seal_outside", full)
        watch = ground.watch()
        ground.save("step-5.pt", b"x")
        ground.quiet(watch)
        for _ in range(600):
            ground.now += 1.0
            watch.look()
        assert 8 <= len(ground.told("trouble")) <= 14
        with pytest.raises(OSError, match="no room"):
            ground.watch().look(is_at_rest=True)
        monkeypatch.undo()
        ground.now += 60.0
        watch.look()
        assert ground.sealed == ["step-000000005"]
        assert ground.words[-1][0] == "well"
