"""Tells Stoker's train supervisor how training gets on. Copy this file beside your script; it needs no other.

    stoker = Stoker()                             # first of all, in the main thread, before any set-up
    load(stoker.resume)                           # a path; None at the beginning
    stoker.phase("train", step=step, loss=loss)   # after each step
    stoker.phase("eval", done=True)               # after each of its batches, or a long one is stopped
    stoker.tell(checkpoint=path)                  # once it is whole, and nothing writes to it any more
    if stoker.stop: ...                           # after each step: save, tell the checkpoint, exit with 0

Without a supervisor every call does nothing. No call blocks or raises. Python 3.8, standard library.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 8192  # of a datagram
INTERVAL_S = 0.1  # between two datagrams that tell the step alone
PATIENCE_S = 1.0  # at exit, with a supervisor that does not read
KEPT = {"checkpoint", "finished", "error", "pid"}  # until they are sent


class Stoker:
    """What the supervisor gives (`resume`, `resume_step`, `micro_batch`, `stop`), and how it is told."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.resume = env.get("STOKER_RESUME_FROM") or None  # the checkpoint, at the path where you saved it
        self.resume_step = _count(env.get("STOKER_RESUME_STEP", ""))
        self.micro_batch = _count(env.get("STOKER_MICRO_BATCH", "")) or None  # None: as you like
        self.stop = False  # True: save, tell the checkpoint, exit with 0
        self._launch, self._to = env.get("STOKER_LAUNCH", ""), env.get("STOKER_NOTIFY_SOCKET", "")
        self._rank = _count(env.get("RANK") or env.get("LOCAL_RANK", ""))
        self._phase, self._told_phase, self._step, self._done = "load", "", None, 0
        self._kept: deque[bytes] = deque()  # not sent yet
        self._sent_at, self._is_full, self._lock = 0.0, False, threading.RLock()
        if self._to:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._handle_stop()
            self._dump_stacks(Path(env.get("STOKER_RUN_DIR", "")) / "log")
            atexit.register(self._last_words)

    def phase(self, name: str, step: Any = None, done: Any = None, **words: Any) -> None:
        """Tells the phase: load, compile, train, eval, checkpoint or wait-data; and words as `tell` does.

        `step` counts the steps made, `done` what is done within eval and checkpoint; True is one more.
        """
        if done is True:
            self._done = done = self._done + 1
        self._phase, self._step = name, self._step if step is None else step
        self._say({**words, "done": done})

    def tell(self, **words: Any) -> None:
        """Tells any of checkpoint (its path), loss, val_loss, lr, grad_norm, tokens, tokens_per_s, error."""
        self._say(words)

    def finished(self, why: str = "finished") -> None:
        """Tells that the run is complete; exit with 0 after it."""
        self._say({"finished": why})

    def _say(self, words: Mapping[str, Any]) -> None:
        if not self._to:
            return
        told, phase = {name for name, value in words.items() if value is not None}, self._phase
        is_due = told - {"done"} or time.monotonic() - self._sent_at >= INTERVAL_S
        if told & KEPT:
            self._kept.append(self._datagram(words))
            self._drain()
        elif (is_due or phase != self._told_phase) and self._drain() and self._send(self._datagram(words)):
            self._told_phase = phase  # what is lost does no harm: the next word has phase and step, too

    def _datagram(self, words: Mapping[str, Any]) -> bytes:
        head = {"launch": self._launch, "phase": self._phase, "rank": self._rank, "step": self._step}
        if "checkpoint" in words:
            head["at"] = time.time()
        lines = (f"{key.upper()}={_text(key, value)}" for key, value in {**head, **words}.items())
        datagram = "\n".join(line for line in lines if line[-1] != "=").encode("utf-8", "replace")
        return datagram[:MOST_BYTES].decode("utf-8", "ignore").encode()

    def _send(self, datagram: bytes) -> bool:
        try:
            self._socket.sendto(datagram, socket.MSG_DONTWAIT, self._to)
        except OSError as error:  # the supervisor does not read, or there is none
            self._is_full = isinstance(error, BlockingIOError)
            return False
        self._sent_at = time.monotonic()
        return True

    def _drain(self) -> bool:
        """Sends what is kept, oldest first; returns False while something is left."""
        with self._lock:
            while self._kept:
                datagram = self._kept.popleft()
                if not self._send(datagram):
                    self._kept.appendleft(datagram)
                    return False
        return True

    def _last_words(self) -> None:
        until = time.monotonic() + PATIENCE_S
        self._kept.append(self._datagram({}))  # the last step
        while not self._drain() and self._is_full and time.monotonic() < until:
            time.sleep(0.01)

    def _handle_stop(self) -> None:
        before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL

        def stop(signum: int, frame: Any) -> None:
            self.stop = True
            if callable(before):
                before(signum, frame)

        try:
            signal.signal(signal.SIGTERM, stop)
        except ValueError:
            text = "Stoker() is not called in the main thread: a stop ends training without a checkpoint"
            print(f"stoker: {text}", file=sys.stderr)
            return
        # Of this process alone: a pool ends its workers by TERM.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, before))

    def _dump_stacks(self, log: Path) -> None:
        """Has SIGUSR2 dump the stacks of all threads, also while the GIL is held."""
        try:
            self._stacks = (log / f"stacks-{self._launch}-{self._rank}.txt").open("ab", buffering=0)
        except OSError:  # a full disk, or a read-only one: training does without
            return
        faulthandler.register(signal.SIGUSR2, self._stacks)
        self.tell(pid=os.getpid(), stacks=int(signal.SIGUSR2))


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _text(key: str, value: Any) -> str:
    """Returns one line; "" for what is None, or has no text or number."""
    try:
        value = os.path.abspath(value) if key == "checkpoint" and value else value  # noqa: PTH100
        plain = value if value is None or isinstance(value, (str, int, os.PathLike)) else float(value)
        if key == "checkpoint" and plain:
            return str(plain).replace("\n", " ")  # a path keeps its blanks; a line feed would end the word
        return "" if plain is None else " ".join(str(plain).split())
    except Exception:  # noqa: BLE001 - whatever the value's own code raises, training goes on
        return ""
