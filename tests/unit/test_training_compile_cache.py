"""The cache of compiled code: what its seal does not prove is made anew, what cannot be used is let alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.training.compile_cache import CompileCache

MACHINE = {"torch": "2.13.0", "card": None}


def filled(root: Path) -> Path:
    """A sealed cache with some code; its directory."""
    cache = CompileCache(root, MACHINE)
    code = cache.directory / "inductor" / "ab"
    code.mkdir(parents=True)
    (code / "kernel.so").write_bytes(b"machine code")
    (code / "kernel.py").write_text("code = 1\n")
    cache.seal()
    cache.close()
    return cache.directory


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def test_sealed_code_is_there_at_the_next_launch(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    (directory / "inductor" / "kernel.lock").touch()  # nobody reads it
    again = CompileCache(tmp_path, MACHINE)
    assert again.directory == directory
    assert files(directory) == {"kernel.so", "kernel.py", "kernel.lock", "seal.json"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: (code / "kernel.so").write_bytes(b"machine c0de"),
        lambda code: (code / "kernel.py").unlink(),
        lambda code: (code / "later.so").write_bytes(b"not listed"),
        lambda code: (code.parents[1] / "seal.json").unlink(),
        lambda code: (code.parents[1] / "seal.json").write_bytes(b"\x00" * 64),
    ],
)
def test_code_that_differs_from_its_seal_is_never_seen_again(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path)
    damage(directory / "inductor" / "ab")
    again = CompileCache(tmp_path, MACHINE)
    assert again.directory == directory and files(directory) == set()
    assert "compiling again" in capsys.readouterr().err


def test_code_behind_a_link_is_proven_as_the_rest(tmp_path: Path) -> None:
    directory, elsewhere = filled(tmp_path / "cache"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (directory / "inductor" / "cd").symlink_to(elsewhere)
    CompileCache(tmp_path / "cache", MACHINE).close()
    assert "kernel.so" in files(directory)
    (elsewhere / "kernel.so").write_bytes(b"nobody sealed it")
    CompileCache(tmp_path / "cache", MACHINE).close()
    assert files(directory) == set() and (elsewhere / "kernel.so").exists()


def test_code_of_another_machine_or_number_of_threads_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path)
    CompileCache(tmp_path, {**MACHINE, "torch": "2.14.0"}).close()
    assert files(directory) == set()
    filled(tmp_path)
    monkeypatch.setattr("torch.get_num_threads", lambda: 999)
    CompileCache(tmp_path, MACHINE).close()
    assert files(directory) == set()


def test_a_cache_that_another_trainer_holds_or_nobody_can_write_is_replaced_by_a_private_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path)
    holder = CompileCache(tmp_path, MACHINE)
    assert holder.directory == directory
    (tmp_path / "file").touch()
    for root, why in ((tmp_path, "is held by"), (tmp_path / "file", "cannot")):
        private = CompileCache(root, MACHINE)
        assert not private.directory.is_relative_to(tmp_path) and why in capsys.readouterr().err
        private.seal()
        private.close()
        assert not private.directory.exists()
    assert "kernel.so" in files(directory)
