"""A launch with compiled blocks: the losses of an eager one, and the same bits whatever the cache."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.store.record import write_record
from support.mounts import WHY_NOT, apart
from support.trainer_run import Inbox, TrainerRun
from support.waiting import LONG_S

COMPILING_S = 4 * LONG_S  # on a busy machine

MODEL = {
    **{"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "ffn_width": 16},
    **{"rope_theta": 10000.0, "norm_eps": 1e-5, "tie_embeddings": True},
}
# Imports torch once for two runs.
AND_THEN = """
import os, sys
from stoker.training.trainer import main
sys.exit(main() or main({"STOKER_RUN_DIR": sys.argv[1], "STOKER_RESUME_FROM": ""}))
"""
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler (apt install g++)")


def prepared(root: Path, cache: Path, compile_what: str = "blocks") -> TrainerRun:
    root.mkdir()
    settings: dict[str, Any] = {"compile": compile_what, "cache": str(cache), "model": MODEL, "heldout": None}
    settings["precision"] = "float32"
    run = TrainerRun(root, steps=3, overrides=settings)
    run.plan(40)
    return run


def trained(root: Path, cache: Path, compile_what: str = "blocks", **how: Any) -> TrainerRun:
    run = prepared(root, cache, compile_what)
    temporary = root / "tmp"
    temporary.mkdir()
    # Quick to compile: vector instructions are neither tried nor used, and nothing is optimized.
    compiler = cache.with_name("g++-O0")  # one for all: compiled code belongs to its compiler
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    environ = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "CXX": str(compiler)}
    trainer = run.start(environ={**environ, "TMPDIR": str(temporary)}, **how)
    assert trainer.wait(COMPILING_S) == 0, run.errors.read_text()
    assert list(temporary.iterdir()) == []  # nothing that the seal does not cover, nothing left behind
    return run


def tensors(run: TrainerRun) -> list[bytes]:
    (last,) = run.checkpoints()
    return [path.read_bytes() for path in sorted(last.glob("*.safetensors"))]


def losses(run: TrainerRun) -> list[float]:
    return [row["loss"] for row in run.rows()]


def sealed(cache: Path) -> tuple[int, bytes]:
    """What changes when a trainer compiles anything: the seal is then written again."""
    seal = cache / "blocks" / "seal.json"
    return seal.stat().st_ino, seal.read_bytes()


def test_a_compiled_run_has_the_losses_of_an_eager_one_and_its_cache_gives_the_same_bits(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    run = trained(tmp_path / "new", cache)
    code = sealed(cache)

    inbox = Inbox(tmp_path / "socket")
    eager = prepared(tmp_path / "eager", cache, "none")
    write_record(eager.layout.launch, eager.record("launch-1") | eager.overrides)
    both = [sys.executable, "-c", AND_THEN, str(eager.layout.root)]
    again = trained(tmp_path / "again", cache, socket_path=inbox.path, below=both)
    assert tensors(again) == tensors(run)
    assert sealed(cache) == code  # nothing was compiled again
    phases = [words["PHASE"] for words in inbox.read()]
    assert phases.index("load") < phases.index("compile") < phases.index("train")
    assert inbox.words[phases.index("compile")]["STEP"] == "0"
    inbox.close()

    assert losses(run) == pytest.approx(losses(eager), abs=1e-4)
    assert tensors(eager) != tensors(run)


def deleted(cache: Path) -> None:
    shutil.rmtree(cache)


def rotten_code(cache: Path) -> None:
    for file in (*cache.rglob("*.so"), *cache.rglob("*.cubin")):
        file.write_bytes(b"\xa5" * 999)


def rotten_graph(cache: Path) -> None:
    for file in (cache / "blocks" / "inductor" / "fxgraph").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-7] + b"\xa5" * 7)


@pytest.mark.long  # test_training_compile_cache proves that such a cache is never used
def test_a_deleted_rotten_or_read_only_cache_costs_time_and_no_bit(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    bits = tensors(trained(tmp_path / "new", cache))
    damages: tuple[Callable[[Path], None], ...] = (deleted, rotten_code, rotten_graph)
    for damage in damages:
        damage(cache)
        assert tensors(trained(tmp_path / damage.__name__, cache)) == bits, damage.__name__

    code = sealed(cache)
    with_mount = f'mount --bind {cache} {cache} && mount -o remount,ro,bind {cache} && exec "$@"'
    below = apart(["sh", "-c", with_mount, "sh"])
    if below is None:
        pytest.skip(WHY_NOT)
    run = trained(tmp_path / "read_only", cache, below=below)
    assert "compiled without a cache" in run.errors.read_text()
    assert tensors(run) == bits and sealed(cache) == code
