"""Checkpoints of a trainer of the user's own: which are found, when they are sealed, and which never."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.checkpoints import seal as seal_module
from stoker.checkpoints.external import find
from stoker.checkpoints.external import watch as watch_module
from stoker.checkpoints.external.find import Refused, expand, look_at
from stoker.checkpoints.external.names import step_in
from stoker.checkpoints.external.sealing import Changed, seal_outside
from stoker.checkpoints.external.watch import End, Watch
from stoker.checkpoints.external.whole import why_not_whole
from stoker.checkpoints.format import known_step
from stoker.checkpoints.mirror.mirror_worker import copy_checkpoint, fetch_checkpoint
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import reading, remove_checkpoint, sweep_leftovers
from stoker.store.direct import DiskFullError
from support.checkpoint_data import body_of
from support.outside import AT_REST, Ground, archive, hf_files, tensors, write_tree

LOGS = {"plan.jsonl": b"", "timelines.jsonl": b""}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def sealed(ground: Ground, path: Path, step: int) -> Path:
    return seal_outside(
        look_at(path),
        ground.checkpoints,
        body_of(step),
        {"launch": "l1"},
        directory=ground.root,
        logs=LOGS,
        progress=lambda _: None,
    ).sealed


def hear(watch: Watch, step: int, *, at: float | None = None, **values: float) -> None:
    at = time.time() if at is None else at
    watch.heard.append((at, at, {"step": step, **values}))


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

        matches = expand(ground.root, "out/**/step-*")
        found = list(matches.paths)
        assert [str(path.relative_to(ground.out)) for path in found] == [
            *("run1/step-1", "run1/step-2", "run2/deep/step-3"),
        ]
        assert list(matches.links) == [ground.out / "run1" / "step-9"]
        assert list(expand(ground.root, f"{ground.out}/run?/step-[12]").paths) == found[:2]
        # The names without a wildcard are the user's own, and may be links.
        assert list(expand(ground.root, "out/run3/step-1").paths) == [ground.out / "run3" / "step-1"]
        assert not expand(ground.root, "nowhere/*").paths

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
                {"launch": "l1"},
                directory=ground.root,
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
        watch.scan()
        assert ground.sealed == []  # it has changed just now
        ground.now += watch.quiet_s
        watch.scan()
        assert ground.sealed == ["step-000000005"]
        ground.quiet(watch)
        assert [one["step"] for one in ground.told("sealed")] == [5]

    def test_a_told_path_is_sealed_at_once_with_what_was_told(self, ground: Ground) -> None:
        watch = ground.watch(None)
        path = ground.save("a  b\tc/ck  p\tt.pt", b"one")
        hear(watch, 70, tokens=700, val_loss=2.5)
        hear(watch, 75, tokens=750, val_loss=2.4)
        watch.hear(str(path), 70, time.time())
        watch.scan()
        body = json.loads((ground.checkpoints / "step-000000070" / "checkpoint.json").read_bytes())
        assert (body["tokens"], body["val_loss"], body["external"]["path"]) == (
            700,
            2.5,
            "out/a  b\tc/ck  p\tt.pt",
        )
        (ground.root / "timelines.jsonl").unlink()  # the supervisor restores it from an older checkpoint
        ground.save("ckpt.pt", b"the second")
        watch.hear("out/ckpt.pt", 80, time.time())
        watch.scan()
        assert ground.sealed == ["step-000000070", "step-000000080"]

    def test_a_path_that_was_written_again_since_it_was_told_waits_for_its_word(self, ground: Ground) -> None:
        watch = ground.watch(None)
        path = ground.save("ckpt.pt", b"of step 15")
        saved_at = path.stat().st_mtime
        hear(watch, 20, at=saved_at + 0.5)  # it is fast, and each word may come late
        watch.hear("out/ckpt.pt", 10, saved_at - 1)
        watch.scan()
        assert ground.sealed == []
        watch.hear("out/ckpt.pt", 15, saved_at + 0.1)
        watch.scan()
        assert ground.sealed == ["step-000000015"]
        assert ground.told("taken") == [{"told": ["out/ckpt.pt", 15, saved_at + 0.1]}]  # not the word before
        ground.save("ckpt.pt", b"of another that is never told")
        ground.quiet(watch)
        assert len(ground.sealed) == 1  # a trainer that tells its checkpoints says when one is whole
        watch.scan(AT_REST)
        assert ground.sealed == ["step-000000015", "step-000000016"]  # the next number: no step is known

    def test_told_paths_outside_through_links_or_missing_are_refused(self, ground: Ground) -> None:
        watch = ground.watch(None)
        (ground.root / "link").symlink_to("/etc")
        own = (".", str(ground.root), "state", "state/checkpoints", "a\0b/x")
        for told in ("/etc/passwd", "../x", "out/../../x", "link/passwd", "nowhere.pt", *own):
            watch.hear(told, 1, time.time())
        watch.scan()
        watch.scan()
        assert len(ground.told("refused")) == 10
        assert ground.sealed == []

    def test_the_step_of_a_name_without_one_is_what_was_told_when_it_was_saved_or_unknown(
        self, ground: Ground
    ) -> None:
        watch = ground.watch("out/gpt2.pt")  # the number in its name is no step
        steps = list[int | None]()
        for step in (100, 200, 300):
            saved_at = time.time() - 10 + step / 100
            hear(watch, step, at=saved_at - 1)
            os.utime(ground.save("gpt2.pt", b"%d" % step), (saved_at, saved_at))
            # Of 200 no other step was made until after the save.
            hear(watch, step if step == 200 else step + 50, at=saved_at + 1)
            ground.quiet(watch)
            steps.append(known_step(ground.body(step)))
            watch = ground.watch("out/gpt2.pt")  # a watch that begins again knows it, too
        assert ground.sealed == ["step-000000100", "step-000000200", "step-000000300"]
        assert steps == [None, 200, None]

    def test_a_save_waits_until_all_is_heard_that_was_printed_before_it(self, ground: Ground) -> None:
        watch = ground.watch(quiet_s=0.0)
        saved_at = time.time() + 60  # so that no busy machine makes it old
        hear(watch, 51, at=saved_at - 10)
        os.utime(ground.save("last.ckpt", b"of step 100"), (saved_at, saved_at))
        ground.quiet(watch)
        assert ground.sealed == []
        watch.heard.append((saved_at - 1, saved_at + 1, {"step": 100}))
        ground.quiet(watch)
        assert [one["step"] for one in ground.told("sealed")] == [100]

    @pytest.mark.parametrize(
        ("name", "heard", "saved_at", "step"),
        [
            ("last.ckpt", [(10, 12, 51), (20, 21, 100)], 21, 100),  # nothing was printed since
            ("last.ckpt", [(10, 12, 51), (20, 21, 100)], 15, None),  # nobody knows: 51 to 100
            ("last.ckpt", [(10, 12, 51), (20, 21, 100)], 30, None),  # nobody read what was printed since
            ("ckpt-16-100.pt", [(10, 12, 99), (20, 21, 104)], 20, 100),
            ("ckpt-16-run.pt", [(10, 12, 99), (20, 21, 104)], 21, 104),
            ("ckpt-150.pt", [(10, 12, 100), (20, 21, 200)], 15, 150),  # it logs each hundredth step
            ("step=30.ckpt", [(10, 12, 110), (20, 21, 120)], 21, 30),  # a bar counts batches
            ("ckpt-7.pt", [], 21, 7),
        ],
    )
    def test_a_step_in_a_name_must_agree_with_what_was_heard(
        self, ground: Ground, name: str, heard: list[tuple[int, int, int]], saved_at: int, step: int | None
    ) -> None:
        watch = ground.watch()
        for since, until, told in heard:
            watch.heard.append((1000.0 + since, 1000.0 + until, {"step": told}))
        os.utime(ground.save(name, b"x"), (1000.0 + saved_at, 1000.0 + saved_at))
        watch.scan(AT_REST)
        [body] = [ground.body(int(name[5:])) for name in ground.sealed]
        assert known_step(body) == step
        assert body["step"] == step or step is None

    def test_without_any_step_they_are_counted(self, ground: Ground) -> None:
        watch = ground.watch()
        for number in range(3):
            ground.save("ckpt.pt", bytes(number + 1))
            ground.quiet(watch)
        assert ground.sealed == ["step-000000000", "step-000000001", "step-000000002"]

    def test_a_restart_takes_only_what_is_new(self, ground: Ground) -> None:
        for step in (10, 20):
            ground.save(f"step-{step}.pt", b"%d" % step)
        ground.watch().scan(AT_REST)
        assert ground.sealed == ["step-000000010", "step-000000020"]
        ground.words.clear()

        again = ground.watch()
        again.scan(AT_REST)
        ground.quiet(again)
        assert ground.words == [("well", {})]
        # A trainer that began again from the start writes steps that are sealed already.
        ground.save("step-10.pt", b"another")
        ground.quiet(again)
        assert "start over" in ground.told("refused")[0]["reason"]
        assert len(ground.sealed) == 2

    def test_a_state_that_was_given_up_is_not_sealed_again(self, ground: Ground) -> None:
        for step in (10, 20):
            ground.save(f"step-{step}.pt", b"%d" % step)
        ground.watch().scan(AT_REST)
        (ground.abandoned / "t0").mkdir()
        (ground.checkpoints / "step-000000020").rename(ground.abandoned / "t0" / "step-000000020")
        again = ground.watch(history=((1, None), (0, 10)))
        again.scan(AT_REST)
        assert ground.sealed == ["step-000000010"]
        ground.save("step-20.pt", b"made again")
        again.scan(AT_REST)
        assert ground.sealed == ["step-000000010", "step-000000020"]

    def test_links_and_files_older_than_the_run_are_never_taken(self, ground: Ground) -> None:
        old = ground.save("step-5.pt", b"old")
        os.utime(old, (1000, 1000))
        (ground.out / "step-6.pt").symlink_to(old)
        watch = ground.watch(begun=2000.0)
        watch.scan(AT_REST)
        watch.scan(AT_REST)
        assert {Path(one["path"]).name for one in ground.told("refused")} == {"step-5.pt", "step-6.pt"}
        assert len(ground.told("refused")) == 2
        assert ground.sealed == []
        # With a clock that was set back behind the run's begin, times say nothing.
        ahead = ground.watch(begun=4e9)
        ahead.scan(AT_REST)
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
            watch.scan()
        assert 8 <= len(ground.told("trouble")) <= 14
        with pytest.raises(OSError, match="no room"):
            ground.watch().scan(AT_REST)
        monkeypatch.undo()
        ground.now += 60.0
        watch.scan()
        assert ground.sealed == ["step-000000005"]
        assert ground.words[-1][0] == "well"


class TestSaves:
    """A save of several files that pauses between them."""

    def save(self, ground: Ground, step: int, *names: str, into: str = "last", ago_s: float = 0.0) -> Path:
        at = time.time() - ago_s
        for name in names or ("model.json", "optimizer.json"):
            write_tree(ground.out / into, {name: b'{"step": %d, "%s"}' % (step, b"x" * 100)})
            os.utime(ground.out / into / name, (at, at))
        return ground.out / into

    def steps_of(self, ground: Ground, number: int) -> set[int]:
        folder = ground.checkpoints / f"step-{number:09d}" / "files"
        return {int(path.read_text()[9:].split(",")[0]) for path in folder.glob("*/*.json")}

    def test_a_launch_that_tells_its_checkpoints_gets_none_taken_by_quiet(self, ground: Ground) -> None:
        watch = ground.watch("out/*")
        path = self.save(ground, 100)
        watch.hear(str(path), 100, time.time())
        watch.scan()
        self.save(ground, 161, "model.json")
        ground.quiet(watch)
        assert self.steps_of(ground, 100) == {100}
        again = ground.watch("out/*")  # nor of a later launch, before its first word
        ground.quiet(again)
        again.scan(End(alive_at=time.time() + 60))  # killed: half of a save
        assert ground.sealed == ["step-000000100"]
        assert again.unsure == [path]
        self.save(ground, 161, "optimizer.json")
        watch.hear(str(path), 161, time.time())
        watch.scan()
        assert self.steps_of(ground, 161) == {161}

    def test_nothing_is_taken_by_quiet_while_the_trainer_says_that_it_saves(self, ground: Ground) -> None:
        watch = ground.watch("out/*")
        self.save(ground, 100, "model.json", into="step-100")
        watch.is_saving = True
        ground.quiet(watch)
        watch.scan(End(was_saving=True, alive_at=time.time() + 60))
        assert ground.sealed == []
        watch.is_saving = False
        self.save(ground, 100, "optimizer.json", into="step-100")
        ground.quiet(watch)
        assert self.steps_of(ground, 100) == {100}

    @pytest.mark.parametrize("is_told", [False, True])
    def test_another_state_of_the_newest_path_at_its_step_replaces_the_sealed_one(
        self, ground: Ground, is_told: bool
    ) -> None:
        watch = ground.watch("out/*" if not is_told else None)
        for number in range(3):
            path = self.save(ground, 100 + number, into="step-100")
            if is_told:
                watch.hear(str(path), 100, time.time())
            watch.scan(AT_REST)
            assert ground.sealed == ["step-000000100"]
            assert self.steps_of(ground, 100) == {100 + number}
        assert [one["replaced"] for one in ground.told("sealed")] == [None, *["step-000000100"] * 2]
        assert len(list((ground.abandoned / "replaced").iterdir())) == 1
        assert prove_checkpoint(ground.checkpoints / "step-000000100").verdict == "proven"

    def test_a_sealed_state_that_is_being_read_is_replaced_later(self, ground: Ground) -> None:
        watch = ground.watch(None)
        for number in (100, 101):
            path = self.save(ground, number)
            watch.hear(str(path), 100, time.time())
            if number == 100:
                watch.scan()
        with reading(ground.checkpoints / "step-000000100"):
            watch.scan()
            assert self.steps_of(ground, 100) == {100}
        watch.scan()
        assert self.steps_of(ground, 100) == {101}

    def test_a_half_that_was_sealed_is_sealed_again_and_later_saves_get_the_time_of_its_pause(
        self, ground: Ground
    ) -> None:
        watch = ground.watch("out/*")
        self.save(ground, 100, "model.json", into="step-100", ago_s=109)
        ground.quiet(watch)  # nobody knows better: a pause longer than any seen
        assert ground.sealed == ["step-000000100"]
        self.save(ground, 100, "optimizer.json", into="step-100", ago_s=100)
        ground.quiet(watch)
        assert len(list((ground.checkpoints / "step-000000100/files/step-100").iterdir())) == 2
        assert ground.body(100)["external"]["pause_s"] == pytest.approx(9, abs=0.5)

        again = ground.watch("out/*")  # a later launch knows it, too
        self.save(ground, 200, "model.json", into="step-200", ago_s=50)
        again.scan()
        ground.now += 16
        again.scan()
        assert ground.sealed == ["step-000000100"]
        self.save(ground, 200, "optimizer.json", into="step-200", ago_s=40)
        again.scan()
        ground.now += 2 * 10 + 1
        again.scan()
        assert ground.sealed == ["step-000000100", "step-000000200"]

    @pytest.mark.parametrize(
        ("names", "end", "is_taken"),
        [
            (("model.json",), End(is_clean=True), True),
            (("model.json",), End(alive_at=30.0), True),  # it trained on for half a minute
            (("model.json",), End(alive_at=1.0), False),
            (("model.json",), End(alive_at=30.0, was_saving=True), False),
            (("model.json", "optimizer.json"), End(alive_at=1.0), True),  # all that the one before has
        ],
    )
    def test_what_a_killed_trainer_leaves_is_taken_where_something_shows_that_it_is_whole(
        self, ground: Ground, names: tuple[str, ...], end: End, is_taken: bool
    ) -> None:
        ground.watch("out/*").scan(AT_REST)
        self.save(ground, 100, into="step-100", ago_s=100)
        ground.watch("out/*").scan(AT_REST)
        saved_at = time.time()
        self.save(ground, 200, *names, into="step-200", ago_s=time.time() - saved_at)
        watch = ground.watch("out/*")
        watch.scan(replace(end, alive_at=saved_at + end.alive_at))
        assert (len(ground.sealed) == 2) == is_taken
        assert bool(watch.unsure) != is_taken
        assert bool(ground.told("refused")) != is_taken

    def test_the_rest_between_two_saves_into_one_directory_is_no_pause_of_a_save(
        self, ground: Ground
    ) -> None:
        watch = ground.watch("out/*", quiet_s=3.0)
        begun = time.time() - 1000
        for second in range(180):
            at = begun + second
            if second % 8 in (0, 2):
                name = "model.json" if second % 8 == 0 else "optimizer.json"
                write_tree(ground.out / "last", {name: b'{"step": %d, "x"}' % (second // 8)})
                os.utime(ground.out / "last" / name, (at, at))
            ground.now += 1
            watch.scan()
        assert watch.series.pause_s == 2
        assert len(ground.sealed) == 180 // 8 - 1  # the first one shows what belongs to a save
        [missed] = ground.told("refused")
        assert "written again before it was still" in missed["reason"] and missed["is_newest"]
        assert all(len(self.steps_of(ground, int(name[5:]))) == 1 for name in ground.sealed)

    @pytest.mark.parametrize(
        ("before", "now", "end", "is_taken"),
        [
            (b"x" * 10_000, b"y" * 9_900, End(), False),  # cut off by a kill
            (b"x" * 10_000, b"y" * 10_000, End(), True),
            (b'{"step": 100}', b'{"step": 99}', End(), True),  # written at once
            (None, b'{"step": 99}', End(), False),
            (None, b'{"step": 99}', End(is_by_itself=True), True),
        ],
    )
    def test_a_plain_file_of_a_killed_trainer_is_held_against_the_one_before(
        self, ground: Ground, before: bytes | None, now: bytes, end: End, is_taken: bool
    ) -> None:
        if before is not None:
            write_tree(ground.out, {"last.json": before})
            ground.watch().scan(AT_REST)
        count = len(ground.sealed)
        write_tree(ground.out, {"last.json": now})
        watch = ground.watch()
        watch.scan(replace(end, alive_at=time.time()))
        assert len(ground.sealed) - count == is_taken
        assert bool(watch.unsure) != is_taken

    def test_two_names_of_one_content_are_one_save_and_an_equal_number_is_no_step(
        self, ground: Ground
    ) -> None:
        watch = ground.watch()
        for name in ("step-100.pt", "last.ckpt"):
            ground.save(name, b"one")
        watch.scan(AT_REST)
        assert ground.sealed == ["step-000000100"]
        assert ground.told("refused") == []
        for name in ("run-7-a.pt", "run-7-b.pt"):
            ground.save(name, name.encode())
        watch.scan(AT_REST)
        assert [one["step"] for one in ground.told("sealed")] == [100, None, None]

    def test_a_sealed_state_that_retention_removed_is_not_refused_at_each_look(self, ground: Ground) -> None:
        for step in (10, 20):
            self.save(ground, step, into=f"step-{step}", ago_s=100 - step)
            ground.watch().scan(AT_REST)
        assert remove_checkpoint(ground.checkpoints / "step-000000010")
        ground.words.clear()
        (ground.out / "step-10").chmod(0o750)  # as a copy of the whole directory does
        watch = ground.watch()
        watch.scan(AT_REST)
        ground.quiet(watch)
        assert ground.words == [("well", {})]


def test_one_bad_neighbour_is_refused_alone_and_told_once(
    ground: Ground, nest: Callable[[Path], None]
) -> None:
    nest(ground.out / "step-2")
    ground.save("step-1/x.pt", b"x")
    (ground.out / "lost+found").mkdir()
    watch = ground.watch("out/**/step-*")
    with patch.object(os, "scandir", _refusing(ground.out / "lost+found", os.scandir)):
        for _ in range(2):
            watch.scan(AT_REST)
    assert ground.sealed == ["step-000000001"]
    reasons = {Path(one["path"]).name: one["reason"] for one in ground.told("refused")}
    assert "Permission" in reasons["lost+found"]
    assert "64 folders" in reasons["step-2"]
    assert len(ground.told("refused")) == len({one["path"] for one in ground.told("refused")})


def _refusing(folder: Path, scandir: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tests run as root, who may read everything."""

    def scan(path: Any) -> Any:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    return scan


@pytest.mark.parametrize(("size", "is_sealed"), [(100_010, True), (115_000, False)])
def test_half_of_a_file_may_be_as_long_as_the_whole_save_before_where_saves_grow(
    *, ground: Ground, size: int, is_sealed: bool
) -> None:
    write_tree(ground.out, {"last.bin": b"x" * 100_000})
    ground.watch("out/last.bin").scan(AT_REST)
    write_tree(ground.out, {"last.bin": b"y" * size})
    ground.watch("out/last.bin").scan(End())
    assert len(ground.told("sealed")) == 1 + is_sealed


def test_a_path_that_was_told_before_waits_for_its_word_also_after_a_save_whose_word_was_lost(
    ground: Ground,
) -> None:
    def save(content: bytes, ago_s: float) -> None:
        write_tree(ground.out, {"last.bin": content})
        os.utime(ground.out / "last.bin", (time.time() - ago_s, time.time() - ago_s))

    save(b"x", 30)
    told = ground.watch("out/last.bin")
    told.hear("out/last.bin", 1, time.time())
    told.scan()
    save(b"y", 20)
    ground.watch("out/last.bin").scan(AT_REST)  # its supervisor was killed before it heard
    save(b"z", 10)
    later = replace(ground.watch("out/last.bin"), launch="another")
    ground.quiet(later)
    assert len(ground.told("sealed")) == 2


def test_the_first_save_of_a_launch_waits_for_its_word_where_the_launch_before_told_or_for_the_next_save(
    ground: Ground,
) -> None:
    def save(step: int, ago_s: float, *parts: str) -> None:
        for part in parts or ("model", "rest"):
            write_tree(ground.out, {(name := f"step={step}.ckpt/{part}.bin"): b"x"})
            os.utime(ground.out / name, (time.time() - ago_s, time.time() - ago_s))

    save(1, 40)
    told = ground.watch("out/step=*.ckpt")
    told.hear("out/step=1.ckpt", 1, time.time())
    told.scan()
    later = replace(ground.watch("out/step=*.ckpt"), launch="another")
    save(2, 30, "model")
    ground.quiet(later)
    assert len(ground.told("sealed")) == 1
    ground.watch("out/step=*.ckpt").scan(End(alive_at=time.time()))
    assert ground.told("refused")[-1]["reason"] == watch_module.UNSURE
    save(2, 25, "rest")
    save(3, 20)
    ground.quiet(later)  # the second is over, and this launch tells nothing
    ground.quiet(later)
    save(4, 10)  # what is all there is whole, also after a save without a word
    replace(ground.watch("out/step=*.ckpt"), launch="third").scan(End(was_saving=True, alive_at=time.time()))
    assert [one["step"] for one in ground.told("sealed")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("shorter", "is_whole"), [(3, True), (100, False)])
def test_a_save_whose_numbers_have_fewer_digits_is_whole_and_one_that_is_cut_off_is_not(
    ground: Ground, shorter: int, is_whole: bool
) -> None:
    write_tree(ground.out, {"step=1.ckpt/rank.bin": b"x" * 100_000})
    told = ground.watch("out/step=*.ckpt")
    told.hear("out/step=1.ckpt", 1, time.time())
    told.scan()
    write_tree(ground.out, {"step=2.ckpt/rank.bin": b"x" * (100_000 - shorter)})
    ground.watch("out/step=*.ckpt").scan(End(was_saving=True, alive_at=time.time()))
    assert [one["step"] for one in ground.told("sealed")] == ([1, 2] if is_whole else [1])
