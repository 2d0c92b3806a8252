"""The built-in trainer: `python -m stoker.training.trainer`, rank 0 of a run, under the trainer protocol.

Exit codes: 0 finished or stopped as asked, 65 bad data, 71 the device's memory is too small, 74 I/O or full
disk, 75 try again, 76 a loss or gradient that is not finite, 78 configuration.
Only light modules are imported at the top: a stop must work while torch is being loaded.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Mapping

from stoker.checkpoints.handover import Sealer
from stoker.kit.exec import set_death_signal
from stoker.kit.lock import Lock
from stoker.kit.relay import tolerate_lost_reader
from stoker.store.errors import NonFinite, StokerError
from stoker.training.launch import Launch, read_launch
from stoker.training.protocol import Protocol, Stop, StopAsked, dumps_stacks
from stoker.training.steps.failures import exit_code


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Runs one launch; reports its end in a datagram and returns the exit code."""
    stop = Stop()
    stop.install()
    set_death_signal(signal.SIGTERM)  # the parent has died: save and end, as at any stop
    # torch reads it when loaded. Threads that spin at each barrier take the cores from other processes,
    # mostly from the shard builders: on 2 busy cores a step took 13 s when they spun, 2 s when they slept.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    protocol = Protocol(environ.get("STOKER_NOTIFY_SOCKET", ""), environ.get("STOKER_LAUNCH", ""))
    try:
        protocol.say("load", **dumps_stacks(environ))
        code = _train(read_launch(environ), protocol, stop)
    except StopAsked:
        code = _stopped(protocol)
    except Exception as problem:  # noqa: BLE001 - every failure becomes an exit code and a message
        # A stop in the middle of an import can surface as any exception.
        code = _stopped(protocol) if stop.asked and stop.at_once else _failed(problem, protocol)
    protocol.close()
    return code


def _train(launch: Launch, protocol: Protocol, stop: Stop) -> int:
    lock = Lock.acquire(
        launch.layout.rank0_lock, purpose=f"trainer of run {launch.run}", extra={"launch": launch.id}
    )
    # It starts while torch is loaded, and keeps the run locked while it seals what a dead trainer left it.
    sealer = Sealer(launch.layout.checkpoints, launch.id, keeps=(lock.fileno(),))
    try:
        from stoker.training.load import load  # noqa: PLC0415 - torch takes seconds; see the first lines

        training = load(launch, protocol, stop, sealer)
        gc.freeze()  # what was loaded stays: no later collection has to look through it
        stop.at_once = False
        ending = training.run()
        protocol.say(finished=ending, remainder=training.batches.remainder)
        print(f"trainer: {ending} at step {training.progress.step} of {launch.steps}", file=sys.stderr)
    finally:
        sealer.end()
        lock.handed_over()
    return 0


def _stopped(protocol: Protocol) -> int:
    protocol.say(finished="stopped")
    print("trainer: stopped before its first step", file=sys.stderr)
    return 0


def _failed(problem: Exception, protocol: Protocol) -> int:
    """Reports a failure, with a traceback for errors that Stoker did not raise; returns the exit code."""
    code = exit_code(problem)
    if not isinstance(problem, StokerError):
        traceback.print_exception(problem)
    print(f"trainer: {problem}", file=sys.stderr)
    words = problem.words if isinstance(problem, NonFinite) else {}
    protocol.say(**words, error=f"{type(problem).__name__}: {problem}")
    return code


if __name__ == "__main__":
    tolerate_lost_reader()
    faulthandler.enable()
    sys.exit(main())
