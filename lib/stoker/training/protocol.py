"""The trainer's side of the protocol: sends datagrams of KEY=value lines to the supervisor, receives stops.

Sending never blocks: a stopped, slow or dead supervisor must not freeze training. A progress datagram that
cannot be sent is dropped, because a newer one follows; other datagrams are kept.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from stoker.store.layout import RunLayout

STEP_INTERVAL_S = 0.1  # at most ten step datagrams per second
MOST_KEPT = 32
MOST_TEXT = 1000  # NUMERICS takes some 400


class Protocol:
    """Sends datagrams with LAUNCH and PHASE to STOKER_NOTIFY_SOCKET, if that variable is set."""

    def __init__(self, path: str, launch: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._launch, self._clock = path, launch, clock
        self._phase = "load"
        self._kept: deque[bytes] = deque(maxlen=MOST_KEPT)
        self._sent_at = float("-inf")
        self._socket: socket.socket | None = None
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    @property
    def phase(self) -> str:
        return self._phase

    def say(self, phase: str | None = None, /, **words: object) -> None:
        """Sends a new phase, a checkpoint or an end; keeps the datagram until the receiver has room."""
        self._phase = phase or self._phase
        self._kept.append(self._datagram(words))
        self._drain()

    def tell(self, **words: object) -> None:
        """Sends progress, at most every 0.1 s; drops the datagram while the receiver has no room."""
        now = self._clock()
        if now - self._sent_at < STEP_INTERVAL_S:
            return
        if self._drain() and self._send(self._datagram(words)):
            self._sent_at = now

    def close(self, patience_s: float = 1.0) -> None:
        """Tries for some time to send the kept datagrams, then closes the socket."""
        deadline = self._clock() + patience_s
        while not self._drain() and self._clock() < deadline:
            time.sleep(0.01)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _datagram(self, words: Mapping[str, object]) -> bytes:
        lines = [f"LAUNCH={self._launch}", f"PHASE={self._phase}"]
        lines += [f"{key.upper()}={_text(value)}" for key, value in words.items() if value is not None]
        return "\n".join(lines).encode()

    def _drain(self) -> bool:
        """Sends the kept datagrams, oldest first; returns False while the receiver has no room."""
        while self._kept:
            if not self._send(self._kept[0]):
                return False
            self._kept.popleft()
        return True

    def _send(self, datagram: bytes) -> bool:
        """Sends a datagram; returns False when the receiver's buffer is full. No receiver counts as sent."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(datagram, socket.MSG_DONTWAIT, self._path)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            # No supervisor listens (a start by hand, or a killed supervisor): the run's files hold the facts.
            return True
        return True


def _text(value: object) -> str:
    """Returns a value as one line; a character that has no UTF-8 becomes its escape."""
    text = str(value).encode(errors="backslashreplace").decode()
    return " ".join(text.split())[:MOST_TEXT]


def dumps_stacks(environ: Mapping[str, str]) -> dict[str, object]:
    """Has a signal dump the stacks of all threads, also while the GIL is held; returns the words for it."""
    if not environ.get("STOKER_NOTIFY_SOCKET"):
        return {}
    rank = int(environ.get("RANK", "0"))
    path = RunLayout(Path(environ["STOKER_RUN_DIR"])).stacks(environ["STOKER_LAUNCH"], rank)
    try:
        file = path.open("ab", buffering=0)
    except OSError:  # the disk is full: training may do without
        return {}
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    return {"rank": rank, "pid": os.getpid(), "stacks": int(signal.SIGUSR2)}


class StopAsked(BaseException):
    """The signal handler raises it before the first step; no `except Exception` catches it."""


class Stop:
    """Whether a stop was asked; while `at_once`, the signal handler raises StopAsked, even during imports."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once = True

    def install(self) -> None:
        """Installs the handler of SIGTERM and SIGINT; call it in the main thread."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        if self.at_once and first:
            raise StopAsked
