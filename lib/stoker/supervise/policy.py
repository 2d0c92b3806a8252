"""What follows the end of a launch: a pure function, one table (repeated in docs/operating.md)."""

from __future__ import annotations

from stoker.supervise.health.exits import ExitClass

RESUME = "then: stoker resume FILE"
_REMEDIES = {
    ExitClass.BAD_DATA: "mend or give up what its last words name (stoker skip-set)",
    ExitClass.HOST_MEMORY: "give the trainer more memory, or shorten train.seq_len",
    ExitClass.GPU_MEMORY: "set train.recompute: blocks, shorten train.seq_len, or free the card",
    ExitClass.NON_FINITE: "look at the data of that step (stoker batch), or lower the learning rate",
    ExitClass.DEVICE_LOST: "look at the card (nvidia-smi, dmesg), reset or replace it",
}


def remedy(kind: ExitClass | None) -> str:
    """Returns what an operator of a halted run can do, in one line."""
    otherwise = "read the trainer's last lines in the log, mend the cause"
    return f"{_REMEDIES.get(kind or ExitClass.CRASHED, otherwise)}, {RESUME}"
