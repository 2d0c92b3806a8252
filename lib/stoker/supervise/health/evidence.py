"""What is known around a launch's end, besides how its process ended."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OVER = ("early_stop", "data_exhausted")  # ends before the last step that are none too early


@dataclass(frozen=True)
class Evidence:
    """The facts by which an end is judged; the defaults speak for nothing."""

    phase: str = "load"
    step: int = 0  # the newest that the trainer told, or the one it resumed from
    last_step: int | None = None  # where the launch was to end; None: not known
    ending: str | None = None  # why it ended, in the trainer's own word
    sealed_step: int | None = None  # of the newest sealed checkpoint; None: there is none
    oom_kills: int = 0  # by the kernel, within the last minute of the launch
    peak_bytes: int = 0  # resident, of all its processes together as far as sampled, at least of the largest
    headroom_bytes: int | None = None  # of the host's memory, before the launch
    headroom_after_bytes: int | None = None
    micro_batch: int | None = None  # of its last step, or of the checkpoint that it resumed from
    gpu_others_share: float | None = None  # of the fullest card's memory, that other processes hold
    free_bytes: int | None = None  # on the disk of its checkpoints, after the end
    xids: tuple[int, ...] = ()  # that the cards brought about by themselves
    lines: tuple[str, ...] = ()  # the last of its output

    @property
    def is_sealed(self) -> bool:
        """Whether no step that the trainer told is lost."""
        return self.step <= (self.sealed_step or 0)

    @property
    def is_short(self) -> bool:
        """Whether an end of its own came before the last step."""
        made = max(self.step, self.sealed_step or 0)
        return self.last_step is not None and made < self.last_step and self.ending not in OVER

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the kernel's kills may have met the launch: the counter can be the whole machine's.

        One that the kernel kills leaves about as much memory as it had; then nothing else was left.
        """
        left = self.headroom_after_bytes
        return self.oom_kills > 0 and (left is None or 2 * self.peak_bytes >= left)

    def body(self) -> dict[str, Any]:
        """Returns what an event and runs.jsonl tell: all that says something, but for the output.

        Kills are told only where they may have met the launch.
        """
        quiet, told = asdict(Evidence()), asdict(self)
        del told["lines"]
        if not self.is_out_of_memory:
            del told["oom_kills"]
        return {name: value for name, value in told.items() if name == "step" or value != quiet[name]}


def free_bytes(directory: Path) -> int | None:
    """Returns what an unprivileged process may still write on the disk of a directory; None: unreadable."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
