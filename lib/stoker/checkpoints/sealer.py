"""Seals checkpoints beside a trainer: `python -m stoker.checkpoints.sealer CHANNEL CHECKPOINTS_DIR LAUNCH`.

CHANNEL is the descriptor of a Unix socket of messages (SOCK_SEQPACKET), one JSON object each. The sealer says
{"ready":true}. An order {"at":offset,"size":bytes} comes with the descriptor of a memory that holds a whole
state: at `offset` a description of that size, {"step","body","files":[[name, offset, size],...]}. The answer
is {"sealed":name} or {"failed":message,"code":exit code,"errno":number or null}; until then the memory is the
sealer's.

SIGTERM, SIGINT and SIGHUP are ignored: a state that was handed over is sealed although its trainer is stopped
or dies. The sealer ends with its trainer, keeping open the lock that was passed to it. It imports little.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from stoker.checkpoints.seal import CheckpointWriter
from stoker.kit.process import readable
from stoker.kit.relay import tolerate_lost_reader
from stoker.store.errors import StokerError
from stoker.store.record import parse_json

USAGE = "usage: python -m stoker.checkpoints.sealer CHANNEL CHECKPOINTS_DIR LAUNCH"
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
IDLE_S = 5.0  # between two checks of the parent, in case another process has the trainer's end of the channel
MOST_BYTES = 1 << 16  # of a message


def main(argv: list[str]) -> int:
    """Seals one state after another until the trainer has ended; returns the exit code."""
    if len(argv) != 3 or not argv[0].isdigit():
        print(USAGE, file=sys.stderr)
        return os.EX_USAGE
    trainer = os.getppid()
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # blocked by the trainer until they are ignored
    with socket.socket(fileno=int(argv[0])) as channel:
        _say(channel, {"ready": True})
        while (order := _next_order(channel, trainer)) is not None:
            _say(channel, _answer(*order, Path(argv[1]), argv[2]))
    return 0


def _next_order(channel: socket.socket, trainer: int) -> tuple[dict[str, Any], int] | None:
    """Waits for an order and returns it with the memory's descriptor; None once the trainer has ended."""
    while not readable(channel.fileno(), timeout_s=IDLE_S):
        if os.getppid() != trainer:
            return None
    with contextlib.suppress(ConnectionError):
        message, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, 1)
        if message:
            return parse_json(message), descriptors[0]
    return None


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the trainer has ended: the directory tells of the seal
        channel.send(json.dumps(message).encode())


def _answer(order: dict[str, Any], descriptor: int, checkpoints: Path, launch: str) -> dict[str, Any]:
    try:
        memory = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        at, size = order["at"], order["size"]
        description = parse_json(bytes(memory[at : at + size]))
        return {"sealed": seal_memory(memory, description, checkpoints, launch).name}
    except Exception as problem:  # noqa: BLE001 - a failed seal must not end the sealer
        if not isinstance(problem, StokerError):
            traceback.print_exception(problem)
        print(f"sealer: {problem}", file=sys.stderr)
        code = problem.exit_code if isinstance(problem, StokerError) else os.EX_SOFTWARE
        number = problem.errno if isinstance(problem, OSError) else None
        return {"failed": f"{problem}"[: MOST_BYTES // 8], "code": code, "errno": number}
    finally:
        os.close(descriptor)


def seal_memory(memory: memoryview, description: dict[str, Any], checkpoints: Path, launch: str) -> Path:
    """Seals the state that lies in a memory; returns the checkpoint. Raises as CheckpointWriter does."""
    with CheckpointWriter(checkpoints, description["step"], launch) as writer:
        for name, at, size in description["files"]:
            writer.add(name, [memory[at : at + size]])
        return writer.seal(description["body"])


if __name__ == "__main__":
    tolerate_lost_reader()
    sys.exit(main(sys.argv[1:]))
