"""Compiles the model's blocks with inductor, and keeps the compiled code for later launches.

The cache costs time at most: what its seal does not prove is never loaded, because compiled code is run and
unpickled as it lies there. Where it cannot be used, this launch compiles in a directory of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from stoker.kit.lock import Lock
from stoker.store.errors import DataError, LockHeld, StorageError, UnknownFormat
from stoker.store.files import make_dir, remove_tree
from stoker.store.record import read_record, write_record
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.numerics import MACHINE, Numerics
from stoker.training.steps.device import Compute
from stoker.training.steps.failures import is_out_of_memory
from stoker.training.steps.memory import windows_a_pass

# One size of micro-batch, with and without gradients, is two; each length in the plan has its own.
MOST_GRAPHS = 64


class CompileCache:
    """The directory of compiled code, locked for this process; a private one where that cannot be used.

    A seal lists the sha256 of every file, and what else the code depends on: `machine`, and what inductor
    does not ask for itself. If either differs, everything is removed and compiled again.
    """

    def __init__(self, root: Path, machine: Mapping[str, Any]) -> None:
        own = {"python": sys.version, "threads": torch.get_num_threads(), "cpu_flags": _cpu_flags()}
        self._made_by = {**machine, **own}
        self._sealed: dict[str, Any] = {}
        self._holds = ExitStack()
        self.directory = root / "blocks"
        try:
            make_dir(self.directory)
            lock = Lock.acquire(root / "blocks.lock", purpose="compiled code of a trainer")
            self._holds.callback(lock.release)
            self._prove()
        except (LockHeld, OSError) as problem:  # StorageError is an OSError
            private = self._holds.enter_context(TemporaryDirectory(prefix="stoker-compiled-"))
            self.directory = Path(private)
            print(f"trainer: blocks are compiled without a cache: {problem}", file=sys.stderr)

    def seal(self) -> None:
        """Writes the seal if code was compiled since the last one."""
        try:
            body = self._body()
            if body != self._sealed:
                write_record(self._seal, body)
                self._sealed = body
        except OSError as problem:  # also a directory that somebody deleted
            print(f"trainer: the next launch compiles again: {problem}", file=sys.stderr)

    def close(self) -> None:
        """Gives the directory free; a private one is removed."""
        self._holds.close()

    @property
    def _seal(self) -> Path:
        return self.directory / "seal.json"

    def _prove(self) -> None:
        for folder, _, _ in os.walk(self.directory):
            if not os.access(folder, os.W_OK):
                raise StorageError(f"{folder} cannot be written")
        with suppress(FileNotFoundError, DataError, UnknownFormat):
            self._sealed = read_record(self._seal)
        found = self._body()
        if found == self._sealed:
            return
        if found["files"] or self._sealed:
            print(f"trainer: {self.directory} is not as it was sealed; compiling anew", file=sys.stderr)
        remove_tree(self.directory)
        make_dir(self.directory)

    def _body(self) -> dict[str, Any]:
        # Also what lies behind links, which inductor follows. Files of locks come and go; nothing reads them.
        found = (
            Path(folder, name)
            for folder, _, names in os.walk(self.directory, followlinks=True)
            for name in names
        )
        files = sorted(
            path for path in found if path.is_file() and path.suffix != ".lock" and path != self._seal
        )
        sums = {str(path.relative_to(self.directory)): _sha256(path) for path in files}
        return {"v": 1, "made_by": self._made_by, "files": sums}


def compile_blocks(
    model: Model, launch: Launch, numerics: Numerics, compute: Compute, *, heldout: Sequence[int] | None
) -> CompileCache:
    """Compiles the blocks, which share their code, for steps and for held-out windows of a shape (N, T + 1).

    Returns the cache, sealed. Another size that comes up later, in an entry of another seq_len, is compiled
    at its first call.
    """
    cache = CompileCache(launch.cache, {name: getattr(numerics, name) for name in MACHINE})
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache.directory / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache.directory / "triton")
    # No pool of processes: a trainer has no children that outlive it.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch._dynamo.config as dynamo  # noqa: PLC0415 - takes a second
    import torch._inductor.config as inductor  # noqa: PLC0415

    inductor.deterministic = launch.deterministic  # no choice of kernels by time
    inductor.cpp_cache_precompile_headers = False  # they lie in /tmp, outside the seal
    inductor.cpp_wrapper = compute.device.type == "cpu"  # g++ runs once a graph: 2.5 times as fast
    # Beyond the limit dynamo would go on without compiling, with other bits.
    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = MOST_GRAPHS, True
    for block in model.blocks:
        block.compile(dynamic=False)
    try:
        _warm_up(model, launch, numerics, compute, heldout)
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise  # else a step will find out, too, and halve the micro-batch
    model.zero_grad(set_to_none=True)
    cache.seal()
    return cache


def _warm_up(
    model: Model, launch: Launch, numerics: Numerics, compute: Compute, heldout: Sequence[int] | None
) -> None:
    """Makes a pass of each size that training will meet; leaves gradients behind."""
    for windows in _sizes(launch.global_batch, numerics.micro_batch):
        with compute.autocast():
            loss = model.loss_sum(_any_windows(model, windows, launch.seq_len + 1))
        loss.backward()  # type: ignore[no-untyped-call]
    if heldout is not None:
        count, length = heldout
        for windows in _sizes(count, windows_a_pass(numerics.micro_batch, launch.seq_len, length - 1)):
            with torch.inference_mode(), compute.autocast():
                model.loss_by_window(_any_windows(model, windows, length))


def _sizes(windows: int, micro_batch: int) -> set[int]:
    """Returns the sizes of the micro-batches of so many windows."""
    return {min(windows, micro_batch), windows % micro_batch} - {0}


def _any_windows(model: Model, count: int, length: int) -> Tensor:
    ids = torch.arange(length, device=model.cos.device) % model.shape.vocab_size
    return ids.repeat(count, 1)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cpu_flags() -> str:
    """Returns a digest of the processor's instruction sets: code for another one may not run at all."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()
