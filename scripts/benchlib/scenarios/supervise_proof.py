"""How fast a checkpoint is proven, beside sha256sum on as many cores."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from stoker.checkpoints.seal import CheckpointWriter, Tensor, tensor_files

FILES, FILE_BYTES = 8, 256 << 20
BODY = {"step": 1, "tokens": 0, "position": [0, 0], "timeline": 0, "plan_head": "0" * 64}
# As the proof, sha256sum gets one file after the other on each core.
SUM = "xargs -d '\\n' -n 1 -P {} sh -c 'printf \"%s\\n\" \"$1\" | sha256sum -c --status' _ < SHA256SUMS"
PROOF = """
import pathlib, sys
from stoker.checkpoints.proof import prove_checkpoint
proof = prove_checkpoint(pathlib.Path(sys.argv[1]))
sys.exit(f"{proof.verdict}: {proof.reason}" if proof.verdict != "proven" else 0)
"""


class SuperviseProofScenario(Scenario):
    """A process that proves 2 GB in 8 files, beside one sha256sum -c a core, with cold and warm page cache.

    The proof reads past the cache either way.
    """

    name = "supervise-proof"
    repeats = 7

    def prepare(self, directory: Path) -> None:
        with CheckpointWriter(directory, 1, "bench") as writer:
            for number in range(FILES):
                data = memoryview(os.urandom(1 << 20) * (FILE_BYTES >> 20))
                (file,) = tensor_files(f"part{number}", [Tensor("w", "U8", (FILE_BYTES,), data)])
                writer.add(*file)
            self.checkpoint = writer.seal(BODY)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        commands = {
            "sha256sum": ["sh", "-c", SUM.format(len(os.sched_getaffinity(0)))],
            "proof": [sys.executable, "-c", PROOF, str(self.checkpoint)],
        }
        return {
            f"{name}, {cache}": lambda _, command=command, cache=cache: self._time(command, cache)
            for cache in ("cold", "warm")
            for name, command in commands.items()
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        for cache in ("cold", "warm"):
            plain, proof = (series[f"{name}, {cache}"]["took_s"].values for name in ("sha256sum", "proof"))
            rate = statistics.median(one / two for one, two in zip(plain, proof, strict=True))
            yield Bar(f"proof, {cache}: x the speed of sha256sum", rate, 0.85, least=True)

    def _time(self, command: list[str], cache: str) -> Measures:
        for file in self.checkpoint.iterdir():
            with file.open("rb") as stream:
                if cache == "cold":
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while cache == "warm" and stream.read(1 << 20):
                    pass
        began = time.monotonic()
        subprocess.run(command, cwd=self.checkpoint, check=True)
        took_s = time.monotonic() - began
        return {"took_s": took_s, "rate_bytes_per_s": FILES * FILE_BYTES / took_s}
